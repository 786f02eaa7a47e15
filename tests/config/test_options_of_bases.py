"""Options that a class hands to its base: read once, and typed for editors."""

from typing import Required, get_origin, get_type_hints

import pytest

from zoo.data.corpus.source import CorpusOptions, CorpusSource
from zoo.data.image_masks import ImageMasks
from zoo.data.images import Images, PictureOptions
from zoo.data.synthetic.base import SyntheticOptions, SyntheticTask
from zoo.data.synthetic.copying import Copying
from zoo.data.tables.labelled_table import LabelledTable, LabelledTableOptions
from zoo.models.decoder import Decoder
from zoo.models.embedding import LanguageModel, LanguageOptions
from zoo.models.transformer import Transformer, TransformerOptions
from zoo.options.signature import options, read_option_names, read_options

TYPED = (
    (CorpusOptions, CorpusSource),
    (LabelledTableOptions, LabelledTable),
    (LanguageOptions, LanguageModel),
    (TransformerOptions, Transformer),
    (SyntheticOptions, SyntheticTask),
    (PictureOptions, Images),
)


@pytest.mark.parametrize(("handed", "base"), TYPED, ids=lambda cls: cls.__name__)
def test_options_that_are_handed_to_a_base_have_its_types(handed, base):
    """They are written a second time, for type checkers and editors."""
    hints = {
        key: hint.__args__[0] if get_origin(hint) is Required else hint
        for key, hint in get_type_hints(handed, include_extras=True).items()
    }
    assert hints == {key: options(base)[key].annotation for key in hints}


def test_options_of_a_base_follow_those_of_a_class():
    assert [*options(Decoder)][:4] == ["dim", "depth", "heads", "encoding"]
    assert [*options(Decoder)] == [*read_options("models", "decoder")]
    assert [*options(Decoder)] == [*read_option_names("models", "decoder")]
    found = options(Copying)
    assert list(found) == list(read_options("data", "copying"))
    assert [*found][-2:] == ["test", "workers"]
    # what is not handed to the base is no option
    assert "label" not in options(ImageMasks)
    assert options(ImageMasks)["size"] == options(Images)["size"]
    assert options(ImageMasks)["batch_size"].default == 16
