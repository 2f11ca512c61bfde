"""`specdec convert`: a model in another file format."""

from __future__ import annotations

import click

from specdec.commands.verb import verb

__all__ = ["command"]


@verb(
    "convert",
    "specdec convert path/to/folder model-Q8_0.gguf --type Q8_0",
    "specdec convert org/name model.gguf                 from the hub, in F16 or BF16",
    "specdec convert path/to/folder model-Q4_K_M.gguf --type Q4_K_M --importance text.txt",
    "specdec convert path/to/folder model.specdec --type int8    a packed file, which loads at once",
    "specdec convert model.gguf path/to/new-folder       back to a Hugging Face folder",
    "specdec convert path/to/folder path/to/new-folder --type int4    a folder of codes",
    "specdec convert path/to/folder model.gguf --adapter path/to/adapter    with a LoRA adapter merged",
)
@click.argument("source")
@click.argument("out", type=click.Path())
@click.option(
    "--type",
    "kind",
    metavar="TYPE",
    help="F32, F16 or BF16 (default: what SOURCE holds); of a GGUF file also Q8_0, Q4_0, Q4_K, Q5_K, "
    "Q6_K, Q4_K_S, Q4_K_M, Q5_K_S, Q5_K_M; of a folder also INT8, INT4; of a packed file f32, bf16, "
    "int8, int4.",
)
@click.option(
    "--importance",
    metavar="TEXT",
    help="A text that the model reads, to find out which weights count most, or what llama-imatrix writes; "
    "for Q4_0, Q4_K, Q5_K, Q6_K and mixtures.",
)
@click.option(
    "--adapter", type=click.Path(), metavar="FOLDER", help="A LoRA adapter to merge into what is written."
)
@click.option("--force", is_flag=True, help="Replace what is at OUT.")
@click.option("--no-tokenizer", is_flag=True, help="Leave the vocabulary out.")
def command(
    source: str,
    out: str,
    kind: str | None,
    importance: str | None,
    adapter: str | None,
    force: bool,
    no_tokenizer: bool,
) -> None:
    """Write a model in another file format.

    SOURCE is a path or hub name, or embedded. OUT ends in .gguf or .specdec, or is the path of a new folder.
    What is at OUT is kept, unless --force is given.
    """
    from specdec.commands.given_models import EMBEDDED
    from specdec.models.convert import convert
    from specdec.models.loading import embedded_pair

    path = convert(
        embedded_pair()[0].path if source == EMBEDDED else source,
        out,
        kind,
        tokenizer=False if no_tokenizer else None,
        importance=importance,
        adapter=adapter,
        force=force,
    )
    size = sum(file.stat().st_size for file in ([path] if path.is_file() else path.iterdir()))
    print(f"{path}: {size / 1e6:.1f} MB")
