"""Small copies of the public corpora, in their true layouts."""

import gzip
import json

C4_FEATURES = ("text", "url", "content-type", "content-length", "timestamp")


def c4_shard(path, texts):
  """Writes a JSON shard of allenai/c4."""
  rows = [json.dumps({"text": text, "timestamp": "2019-04-25T12:57:54Z", "url": f"http://x.dk/{i}"},
                     ensure_ascii=False) for i, text in enumerate(texts)]
  path.parent.mkdir(parents=True, exist_ok=True)
  path.write_bytes(gzip.compress(("\n".join(rows) + "\n").encode()))


def parquet(path, texts, **columns):
  """Writes a parquet file with a column "text" and others, each a function of the row number."""
  import pyarrow
  import pyarrow.parquet

  rows = [{**{name: make(i) for name, make in columns.items()}, "text": text}
          for i, text in enumerate(texts)]
  path.parent.mkdir(parents=True, exist_ok=True)
  pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path, row_group_size=16)


def dynaword(folder, source, texts):
  """Writes data/<source>/<source>.parquet of danish-foundation-models/danish-dynaword."""
  parquet(folder / "data" / source / f"{source}.parquet", texts, id=lambda i: f"{source}_{i}",
          source=lambda i: source, added=lambda i: "2025-08-05",
          created=lambda i: "2020-01-01, 2021-01-01", token_count=lambda i: 1000 + i)
  (folder / "data" / source / f"{source}.md").write_text("# Dataset Card\n")


def gigaword_parquet(folder, section, texts):
  """Writes <section>/<section>.parquet of danish-foundation-models/danish-gigaword."""
  parquet(folder / section / f"{section}.parquet", texts, source=lambda i: section,
          id=lambda i: f"{section}_{i}", added=lambda i: "2021-03-28", created=lambda i: "2009",
          metadata=lambda i: {"domain": "Spoken", "license": "CC0", "source-pretty": section})


def wikipedia(folder, texts):
  """Writes the Danish file of wikimedia/wikipedia."""
  parquet(folder / "20231101.da" / "train-00000-of-00001.parquet", texts, id=str,
          url=lambda i: f"https://da.wikipedia.org/wiki/{i}", title=lambda i: f"Titel {i}")


def fineweb2(folder, split, texts):
  """Writes a file of a split of HuggingFaceFW/fineweb-2, dan_Latn."""
  parquet(folder / "data" / "dan_Latn" / split / "000_00000.parquet", texts,
          id=lambda i: f"<urn:uuid:{i}>", dump=lambda i: "CC-MAIN-2021-04",
          url=lambda i: f"https://x.dk/{i}", date=lambda i: "2021-01-16T19:43:13Z",
          file_path=lambda i: "s3://x", language=lambda i: "dan", language_score=lambda i: 0.99,
          language_script=lambda i: "Latn", minhash_cluster_size=lambda i: 1)


def gigaword_tree(folder, sections):
  """Writes sektioner/<section>/<document> and what lies beside documents; {section: [text]}."""
  for section, texts in sections.items():
    place = folder / "sektioner" / section
    place.mkdir(parents=True)
    for i, text in enumerate(texts):
      (place / f"{section}_{i:04d}").write_text(text, encoding="utf-8")
    (place / f"{section}.jsonl").write_text('{"doc_id": "x", "text": "metadata"}\n')
    (place / f"{section}.json").write_text('{"license": "metadata"}\n')
    (place / "LICENSE").write_text("licence, no document\n")
    (place / "README.md").write_text("description, no document\n")


def tfds(folder, dataset, config, version, splits, features=("text",)):
  """Prepares data as TFDS does: <dataset>/<config>/<version> in folder; splits {name: [text]}."""
  import tensorflow_datasets

  core = tensorflow_datasets.core

  class Builder(core.GeneratorBasedBuilder, skip_registration=True):
    __module__ = "fixture"  # TFDS looks for further files beside modules that are in packages.
    name = dataset
    VERSION = core.Version(version)
    BUILDER_CONFIGS = [core.BuilderConfig(name=config, version=version)]

    def _info(self):
      texts = {name: tensorflow_datasets.features.Text() for name in features}
      return core.DatasetInfo(builder=self,
                              features=tensorflow_datasets.features.FeaturesDict(texts))

    def _split_generators(self, dl_manager):
      return {split: self._generate_examples(texts) for split, texts in splits.items()}

    def _generate_examples(self, texts):
      for i, text in enumerate(texts):
        yield i, {name: text if name == "text" else f"{name} {i}" for name in features}

  Builder(data_dir=folder, config=config).download_and_prepare()


def tfrecord(path, texts, field="text"):
  """Writes a TFRecord file of tf.train.Example."""
  import tensorflow as tf

  with tf.io.TFRecordWriter(str(path)) as writer:
    for text in texts:
      value = tf.train.Feature(bytes_list=tf.train.BytesList(value=[text.encode()]))
      writer.write(tf.train.Example(features=tf.train.Features(
          feature={field: value})).SerializeToString())
