"""A page about a run whose class has a hostile name, in Chromium: nothing of the name is run."""

import pytest
from hostile import make_images
from tiny import TINY
from training import diagnose, fit

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hostile")
    make_images(folder / "images")
    tiny = [word for word in TINY if not word.startswith("data.")]
    data = f"data={{name: images, path: {folder}/images, size: 8, channels: 1, batch_size: 4}}"
    options = [*tiny, data, "evaluate.resolutions=null"]
    fit("vit_none", options, folder / "run", "never")
    page = folder / "diagnosis.html"
    diagnose(str(folder / "run"), "samples=2", "limit=1", "controls=false", f"to={page}")
    return folder


def test_a_hostile_class_is_text_on_the_page(visit):
    tab = visit("diagnosis")
    assert tab.locator("img[src=x]").count() == 0
    assert "onerror=alert(1)" in tab.content()
