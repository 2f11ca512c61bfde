"""Hugging Face folders: ``config.json``, ``*.safetensors`` and a tokenizer.

``config.json`` is read as ``transformers`` reads it. Fields that ask for an unsupported computation are
refused by name; unknown fields cause a warning. Unused tensors are refused too, except for buffers of old
versions of ``transformers`` and a tied head that equals the embedding.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from specdec.errors import CheckpointError, UnsupportedModelError
from specdec.fields import Fields, read_json_object
from specdec.models.chat_template import resolve_chat_template
from specdec.models.checkpoints import compressed_tensors, gptq
from specdec.models.checkpoints.checkpoint import Checkpoint
from specdec.models.checkpoints.compressed_tensors import CodesReader
from specdec.models.checkpoints.file_tensor import FileTensor
from specdec.models.checkpoints.generation_config import GENERATION_FIELDS, read_generation_defaults
from specdec.models.checkpoints.matching import has_own_head, match_tensors, matched_checkpoint
from specdec.models.checkpoints.safetensors_file import open_weights
from specdec.models.families import FAMILIES, ConfigReader, Family, architecture_of, coded_sources
from specdec.models.tokenizer import resolve_tokenizer

# Fields without effect on any architecture: names, versions, training, labels, library switches.
_HARMLESS: Final = GENERATION_FIELDS.union(
    """
    _attn_implementation _attn_implementation_autoset _commit_hash _flash_attn_2_enabled _name_or_path
    _num_labels activation_dropout architectures attention_dropout attention_probs_dropout_prob
    attn_implementation attn_pdrop auto_map chunk_size_feed_forward classif_dropout classifier_dropout
    cls_token_id cross_attention_hidden_size decoder_layerdrop dropout dropout_rate dtype emb_pdrop
    embd_pdrop embed_dropout embedding_dropout encoder_layerdrop finetuning_task gradient_checkpointing
    hidden_dropout hidden_dropout_prob id2label init_std initializer_factor initializer_range is_decoder
    is_llama_config keys_to_ignore_at_inference label2id layerdrop mask_token_id model_max_length model_type
    num_labels output_past output_router_logits predict_special_tokens prefix pretraining_tp problem_type
    resid_dropout resid_pdrop residual_dropout return_dict router_aux_loss_coef router_jitter_noise
    save_step sep_token_id summary_activation summary_first_dropout summary_proj_to_labels summary_type
    summary_use_proj task_specific_params tf_legacy_loss tokenizer_class torch_dtype torchscript
    transformers.js_config unk_token_id unsloth_fixed unsloth_version use_bfloat16 use_return_dict
    """.split()
)

# Switches of other classes, without effect when off.
_SWITCHES: Final = (
    "alibi", "attention_bias", "is_encoder_decoder", "lm_head_bias", "mlp_bias", "qk_layernorm",
    "rope_interleaved", "tie_encoder_decoder", "use_mrope", "use_qk_norm", "use_sliding_window",
)  # fmt: skip


def open_folder(folder: Path, tokenizer: Any = None, n_ctx: int | None = None) -> Checkpoint:
    """Open a Hugging Face folder; see :func:`specdec.checkpoints.open_checkpoint`."""
    file = folder / "config.json"
    fields = Fields(read_json_object(file), file)
    if fields.has("specdec_draft"):
        expected = f"a model folder; load the draft with specdec.drafts.load({str(folder)!r}, target)"
        raise UnsupportedModelError(f"{folder}: is a learned draft; expected {expected}")
    architecture, family, config, reader = described(fields, n_ctx)
    of_blocks = mtp_prefixes(family, fields, config)
    tensors = {
        name: one
        for name, one in held_tensors(folder, family, reader).items()
        if not name.startswith(of_blocks)
    }
    if family.settled is not None:
        config = family.settled(config, tensors)
    coded = {name for name, tensor in tensors.items() if tensor.is_coded}
    try:
        sources = coded_sources(family.sources(config, tensors.__contains__), coded)
        if has_own_head(family, config, sources, tensors):
            config, fields = config | {"tied": False}, fields.replaced(tie_word_embeddings=False)
            sources = coded_sources(family.sources(config, tensors.__contains__), coded)
    except ValueError as error:  # from the core, which names the field of the canonical configuration
        raise CheckpointError(f"{file}: {error}") from error
    gptq.drop_zero_biases(tensors, {name for source in sources for name in source.stored})
    match_tensors(folder, family, config, sources, tensors, described_by="config.json")
    has_encoder = config.get("encoder") is not None
    defaults = read_generation_defaults(folder, fields, config["n_vocab"], has_encoder=has_encoder)

    found = resolve_tokenizer(
        tokenizer, folder, bos_id=defaults.bos_id, eos_ids=defaults.eos_ids, n_vocab=config["n_vocab"]
    )
    return matched_checkpoint(
        folder, architecture, config, sources, tensors, tokenizer=found, decoder_start=defaults.decoder_start,
        bos_id=defaults.bos_id, eos_ids=defaults.eos_ids or (), default_sampling=defaults.sampling,
        chat_template=resolve_chat_template(tokenizer, folder),
        weight_files=tuple(sorted(set().union(*(tensor.files for tensor in tensors.values())))),
        fields=fields.as_dict(),
    )  # fmt: skip


def described(
    fields: Fields, n_ctx: int | None = None
) -> tuple[str, Family, dict[str, Any], CodesReader | None]:
    """Return architecture, family, canonical configuration, and the reader of a quantized folder."""
    architecture = architecture_of(fields, fields.file)
    family = FAMILIES[architecture]
    return architecture, family, *described_by(family, fields, n_ctx)


def described_by(
    family: Family, fields: Fields, n_ctx: int | None = None
) -> tuple[dict[str, Any], CodesReader | None]:
    """Return the canonical configuration as a family reads it, and the reader of a quantized folder."""
    reader = codes_reader(fields, family)
    decoder = family.decoder_fields(fields)
    for part in (fields, decoder):
        _check_attention(part, family)
    config = family.read_config(ConfigReader(decoder, n_ctx))
    if config.get("encoder") is not None:
        fields.skip("is_encoder_decoder")
    of_blocks = () if family.mtp is None else family.mtp.counts
    fields.warn_of_unread(_HARMLESS.union(family.harmless, of_blocks))
    return config, reader


def _check_attention(fields: Fields, family: Family) -> None:
    """Refuse fields that change attention in every class; mark switches that are off as read."""
    because = "attention is causal"
    fields.require("is_causal", True, because=because)
    if fields.raw("use_bidirectional_attention") not in family.bidirectional:
        fields.require("use_bidirectional_attention", False, because=because)
    fields.require("add_cross_attention", False, because="the architecture implies it")
    fields.require("pruned_heads", {}, because="layers have all of their heads")
    fields.skip_false(*_SWITCHES)


# By ``quant_method``.
_READERS: Final[Mapping[str, Callable[[Fields], CodesReader]]] = {
    compressed_tensors.METHOD: compressed_tensors.reader_of, **gptq.READERS
}  # fmt: skip


def codes_reader(fields: Fields, family: Family) -> CodesReader | None:
    """Return what combines the parts of quantized matrices; None without, or if the family does."""
    if fields.raw("quantization_config") is None:
        return None
    wanted = (family.quantized,) if family.quantized else tuple(_READERS)
    quantized = fields.object("quantization_config")
    method = None if quantized is None else quantized.raw("quant_method")
    if quantized is None or method not in wanted:
        expected = f"no such field, or quant_method {' or '.join(map(repr, wanted))}"
        raise fields.unsupported("quantization_config", expected)
    quantized.skip("modules_to_not_convert", "ignore")  # the tensors show which are quantized
    if family.quantized:
        quantized.skip("version")
        return None
    return _READERS[method](quantized)


def mtp_prefixes(family: Family, fields: Fields, config: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the prefixes of the tensors of multi-token prediction blocks."""
    if family.mtp is None:
        return ()
    n_blocks = family.n_mtp_blocks(family.decoder_fields(fields))
    return family.mtp.roots(config["n_layer"], n_blocks)


def held_tensors(folder: Path, family: Family, reader: CodesReader | None) -> dict[str, FileTensor]:
    """Return the tensors in the files by the names of the family's table, and those of MTP blocks."""
    tensors: dict[str, FileTensor] = {}
    held = open_weights(folder)
    for name, tensor in (held if reader is None else reader(held)).items():
        full = family.full_name(name)
        if full is None:
            continue
        if full in tensors:
            raise tensor.error(f"is a duplicate of '{tensors[full].name}', its other name", "one of them")
        tensors[full] = tensor
    return tensors
