"""The topics of the Python manual."""

from pydoc_data.topics import topics

from zoo.data.python_docs import PythonDocs, read_library


def test_every_topic_is_read_in_order_of_its_name():
    data = PythonDocs(0)
    assert [document.name for document in data.corpus.documents] == sorted(topics)
    whole = "".join(document.text for document in data.corpus.documents)
    assert len(whole) > 400_000
    assert whole.startswith(topics[min(topics)].strip() + "\n\n")


def test_windows_are_english():
    data = PythonDocs(0, length=64, batch_size=16)
    batch = next(iter(data.train_dataloader()))
    assert batch.inputs.shape == (16, 64)
    assert " the " in data.spec.vocabulary.decode(batch.inputs.flatten().tolist())
    assert data.count_samples("train") > 5000


def test_its_digest_and_facts_are_those_of_another():
    assert PythonDocs(0).digest == PythonDocs(1, length=64).digest
    assert PythonDocs(0).spec == PythonDocs(1).spec


def test_topics_are_documents():
    data = PythonDocs(0, documents=True)
    assert any(batch.documents.max() > 0 for batch in data.test_dataloader())


def test_streams_and_strides_are_options_here_too():
    assert PythonDocs(0, streams=True, batch_size=4).count_samples("train") % 4 == 0
    assert PythonDocs(0, stride=64).count_samples("test") > 1.9 * PythonDocs(0).count_samples(
        "test"
    )


def test_modules_of_the_library_follow_on_request():
    documents = {document.name: document.text for document in read_library()}
    assert "class Fraction" in documents["fractions.py"]
    assert documents["topic assert"] == topics["assert"].strip() + "\n\n"
    assert not any("test" in name.split("/")[:-1] for name in documents)
    assert not any(name.startswith(("site-packages", "_sysconfigdata")) for name in documents)
    assert sum(map(len, documents.values())) > 5_000_000
    # neither topics nor modules come first
    names = list(documents)
    half = len(names) // 2
    assert any(name.startswith("topic") for name in names[:half])
    assert any(name.startswith("topic") for name in names[half:])
    assert list(documents) == [document.name for document in read_library()]
