"""Names of metrics on pages, and columns of numbers."""

from zoo.reporting.numbers import format_alike, name_metric


def test_metrics_have_the_names_that_people_say():
    assert name_metric("test/bits_per_character") == "bits per character"
    assert name_metric("val/ece", arrow=True) == "validation calibration error \u2193"
    assert name_metric("test/accuracy", arrow=True) == "accuracy \u2191"
    assert name_metric("train/lr", arrow=True) == "training lr"


def test_numbers_of_a_column_have_equal_decimals():
    assert format_alike([3.691, 32.7, 3.69145]) == ["3.69", "32.70", "3.69"]
    assert format_alike([0.376, 0.79671]) == ["0.3760", "0.7967"]
    # none vanishes, and what is not finite keeps its sign
    assert format_alike([1000.0, 0.25]) == ["1\u202f000", "0.25"]
    assert format_alike([2.0, float("inf"), float("nan")]) == ["2.000", "\u221e", "\u2013"]
