"""The causal types of transformers, as transformers' code over pages serves or refuses them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from testing.checkpoints import write_tokenizer
from tests.helpers.oracle import VOCAB

DECODERS = [
    "bert",
    "bert-generation",
    "camembert",
    "data2vec-text",
    "electra",
    "ernie",
    "roberta",
    "roberta-prelayernorm",
    "roc_bert",
    "xlm-roberta",
    "xlm-roberta-xl",
    "xmod",
]
"""Types that are encoders, unless their configuration says `is_decoder`."""

TURN = {"rope_type": "default", "rope_theta": 1e4}

MEDIA_TURN = {**TURN, "mrope_section": [16, 24, 24]}
HALF_TURN = {**TURN, "mrope_section": [8, 12, 12], "partial_rotary_factor": 0.5}

SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "deepseek_v2": {"num_experts_per_tok": 6, "moe_intermediate_size": 1536},
    "dots1": {"n_routed_experts": 128, "num_experts_per_tok": 6, "n_shared_experts": 2, "n_group": 1, "topk_group": 1},
    "hunyuan_v1_dense": {"head_dim": 128},
    "hunyuan_v1_moe": {"head_dim": 128},
    "ministral": {"head_dim": 128},
    "nemotron": {"head_dim": 128, "num_key_value_heads": 8},
    "bamba": {"attn_layer_indices": [9, 18, 27]},
    "granitemoehybrid": {"layer_types": [*["mamba"] * 5, "attention"] + ["mamba"] * 26},
    "lfm2_moe": {"num_hidden_layers": 3, "layer_types": ["conv", "full_attention", "conv"]},
    "lfm2": {"num_hidden_layers": 2, "layer_types": ["conv", "full_attention"]},
    "cohere_compass_text": {"rope_parameters": {"full_attention": TURN, "sliding_attention": TURN}},
    "qwen2_5_vl": {"text_config": {"rope_parameters": MEDIA_TURN}},
    "qwen3_omni_moe_thinker": {"text_config": {"head_dim": 128}, "vision_start_token_id": 151652},
    "aya_vision": {"vision_config": {"model_type": "siglip_vision_model", "num_attention_heads": 16}},
    "cohere_compass": {"text_config": {"rope_parameters": {"full_attention": TURN, "sliding_attention": TURN}}},
    "deepseek_ocr2": {
        "text_config": {"num_experts_per_tok": 6, "n_group": 1, "topk_group": 1, "moe_intermediate_size": 896}
        | {"mlp_layer_types": ["dense"] + ["sparse"] * 31}
    },
    "ernie4_5_vl_moe": {"text_config": {"rope_parameters": {**TURN, "mrope_section": [22, 22, 20]}}},
    **{kind: {"text_config": {"rope_parameters": HALF_TURN}} for kind in ("glm4v", "glm46v", "glmga")},
    "glm4v_moe": {"text_config": {"rope_parameters": HALF_TURN, "head_dim": 128}},
    "glm_ocr": {"text_config": {"rope_parameters": {**TURN, "mrope_section": [8, 12, 12]}}},
    "granite4_vision": {"image_grid_pinpoints": [[384, 384]], "downsample_rate": "1/2"}
    | {"deepstack_layer_map": [], "spatial_target_layers": []},
    "hunyuan_vl": {"text_config": {"head_dim": 128, "rope_parameters": {**TURN, "mrope_section": [16, 16, 16, 16]}}},
    "ovis2": {"text_config": {"vocab_size": 151643}},
    **{kind: {"text_config": {"rope_parameters": MEDIA_TURN}} for kind in ("paddleocr_vl", "qwen2_vl")},
    "qwen2_5_omni_thinker": {"text_config": {"rope_parameters": MEDIA_TURN}, "vision_start_token_id": 151652},
    "qwen2_5_omni": {
        "thinker_config": {"text_config": {"rope_parameters": MEDIA_TURN}, "vision_start_token_id": 151652}
    },
    "qwen3_omni_moe": {"thinker_config": {"text_config": {"head_dim": 128}, "vision_start_token_id": 151652}},
    **{kind: {"is_decoder": True} for kind in DECODERS},
    "xmod": {"is_decoder": True, "default_language": "en_XX"},
}
"""What each checkpoint of a type says, and its default configuration leaves out."""


def _words(text: str) -> list[str]:
    return text.split()


SERVED = _words("""
    afmoe apertus arcee aria_text axk1 bailing_hybrid bamba beam bert bert-generation biogpt bitnet
    camembert codegen cohere cohere2 cohere2_moe cohere_compass_text ctrl cwm data2vec-text
    deepseek_v2 deepseek_v3 diffllama dots1 ernie ernie4_5 ernie4_5_moe exaone4 exaone_moe falcon_h1
    falcon_mamba flex_olmo flint fuyu gemma gemma2 gemma3 gemma3_text gemma3n gemma3n_text gemma4
    gemma4_text gemma4_unified gemma4_unified_text glm glm4 glm4_moe glm4_moe_lite got_ocr2 gpt-sw3
    gpt2 gpt_bigcode gpt_neo gpt_neox gpt_neox_japanese gpt_oss gptj granite granite_swa granitemoe
    granitemoe_swa granitemoehybrid granitemoeshared helium hrm_text hunyuan_v1_dense hunyuan_v1_moe
    hy_v3 hyperclovax internlm3 iquestcoder jais2 jamba kimi_linear kolibri1 laguna lfm2 lfm2_moe
    lfm3 llama llama4 llama4_text mamba mamba2 mellum mimo_v2_flash minicpm3 minimax minimax_m2
    minimax_m3_vl_text ministral ministral3 mistral mixtral modernbert-decoder moshi
    moss_transcribe_diarize nanochat nemotron nemotron_h olmo olmo2 olmo3 olmo_hybrid olmoe opt
    persimmon phi phi3 phi4_multimodal phimoe qwen2 qwen2_moe qwen3 qwen3_5 qwen3_5_moe
    qwen3_5_moe_text qwen3_5_text qwen3_moe qwen3_next roberta roberta-prelayernorm roc_bert
    seed_oss smollm3 solar_open stablelm starcoder2 vaultgemma xlm-roberta xlm-roberta-xl xmod youtu
    zamba zamba2 zaya
""")
"""Types that are exact over pages."""

SEEING = _words("""
    aria aya_vision blip-2 cohere2_vision cohere_compass cosmos3_edge cosmos3_omni deepseek_ocr2
    deepseek_vl deepseek_vl_hybrid ernie4_5_vl_moe exaone4_5 fast_vlm fuyu gemma3 gemma3n gemma4
    gemma4_unified glm46v glm4v glm4v_moe glm_ocr glmasr glmga got_ocr2 granite4_vision
    granite_docling granite_speech granite_speech_plus hunyuan_vl hyperclovax_vision_v2 idefics2
    idefics3 instructblip instructblipvideo internvl janus kimi_k25 lfm2_vl lfm3_vl lighton_ocr
    llama4 llava llava_next llava_next_video llava_onevision minicpm_ocr minicpmv4_6 minicpmv4_7
    minimax_m3_vl mistral3 mistral4 mllama molmo2 moss_transcribe_diarize muse_glimmer muse_spark
    nemo_speechlm nemotron_h_omni ovis2 paddleocr_vl perception_lm phi4_multimodal pp_chart2table
    qianfan_ocr qwen2_5_omni qwen2_5_omni_thinker qwen2_5_vl qwen2_audio qwen2_vl qwen3_5
    qwen3_5_moe qwen3_asr qwen3_omni_moe qwen3_omni_moe_thinker qwen3_vl qwen3_vl_moe shieldgemma2
    smolvlm vibevoice_asr video_llama_3 video_llava vipllava voxtral
""")
"""Types of more than text whose text is exact."""

WITH_STATE = _words("""
    bailing_hybrid bamba falcon_h1 falcon_mamba granitemoehybrid jamba kimi_linear lfm2 lfm2_moe
    lfm3 mamba mamba2 minimax nemotron_h olmo_hybrid qwen3_5 qwen3_5_moe qwen3_5_moe_text qwen3_5_text
    qwen3_next zamba zamba2 zaya
""")
"""Types among these whose layers keep a state."""

WHOLE_STATES = ["minimax", "zaya"]
"""Types among these of whose states each rank has all."""

ONE_RANK = {
    "1 key-value heads cannot be split": ["gpt_bigcode"],
}
"""Types that ranks cannot share, by what the reason says."""

WITHOUT_GRAPHS = {
    "copies numbers from the host": ["gemma3n", "gemma3n_text"],
    "numbers of the device": ["xmod"],
    "sinks": ["flint", "gpt_oss", "granite_swa", "granitemoe_swa", "mimo_v2_flash"],
}
"""Types that no CUDA graph records, by what the reason says; and those with a state are not recorded."""

REFUSED: Mapping[str, list[str]] = {
    "a bias by position": _words("""
        inkling2_text inkling_text
    """),
    "an encoder": _words("""
        bart bigbird_pegasus blenderbot blenderbot-small marian mbart mvp pegasus plbart prophetnet whisper
    """),
    "beside": _words("""
        big_bird bloom falcon git megatron-bert openai-gpt rembert roformer rwkv trocr xglm
    """),
    "over pages its logits differ": _words("""
        doge recurrent_gemma
    """),
    "a forward fails": _words("""
        axk2 cpmant deepseek_v32 deepseek_v4 dots3_note dots3_note_text glm_moe_dsa hy_v4 jetmoe longcat_flash
        mpt xlm xlnet xlstm
    """),
    "its embeddings have": _words("""
        electra
    """),
    "config.json: ": _words("""
        blt musicgen musicgen_melody dbrx emu3 gemma4_unified_assistant mllama qwen4_exp qwen4_exp_text reformer
    """),
}
"""Other types, by what the refusal says."""

SEEING_REFUSED: Mapping[str, list[str]] = {
    "a bias by position": ["inkling2", "inkling_mm_model"],
    "is no causal model|num_hidden_layers must be|with an encoder": _words("""
        chameleon evolla florence2 idefics kyutai_speech_to_text pi0 pix2struct pp_formulanet t5gemma2 udop
        vision-encoder-decoder
    """),
    "beside": ["blip", "git"],
    "'reference_sliding_attention', which Pie does not know": ["unlimited_ocr"],
    "masks of its own|is not causal|over pages its logits differ": _words("kosmos-2 kosmos-2.5 paligemma"),
    "a forward fails": _words("dots3_note mistral_large4 step3p7 voxtral_realtime"),
    "config.json: ": _words("diffusion_gemma emu3 fun_asr_nano glm5_next qwen4_exp"),
}
"""Types of more than text whose text is refused, by what the refusal says."""

TESTED = "5.23.0"
"""The version of transformers that has these types."""


def save_small(kind: str, folder: Path) -> Any:
    """Writes a small checkpoint of a type that is served, with random weights; its model, in float32. Of a type of more
    than text, it is the part that makes text."""
    import torch
    from transformers import CONFIG_MAPPING
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    from pie_inference.models.borrowed import code
    from pie_inference.models.borrowed.proving.proof import randomize
    from pie_inference.models.borrowed.proving.shrink import SMALL, shrink

    architecture = code.SEEING[kind] if kind in SEEING else MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[kind]
    whole = CONFIG_MAPPING[kind](**SETTINGS.get(kind, {})).to_dict()
    config = code.read(whole, architecture)
    values = shrink(config)
    for part in (values, *(each for each in values.values() if isinstance(each, dict))):
        names = ("vocab_size", "vocab_size_per_layer_input")
        part |= {name: VOCAB for name in names if part.get(name) == SMALL["vocab_size|vocab_size_per_layer_input"]}
    if kind in SEEING and config.model_type != kind:  # a part of it alone
        values = {**whole, code.THINKER if code.THINKER in whole else "text_config": values}
    model = code.make(code.read(values, architecture), torch.float32, "cpu", "eager")
    with torch.no_grad():
        randomize(model)
    if kind == "qwen2_audio":
        model.model.audio_tower = torch.empty(0)  # its code asks on which device that is
    model.save_pretrained(folder)
    said = values | {"model_type": kind} if kind in SEEING else json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(said | {"architectures": [architecture]}, default=str))
    write_tokenizer(folder, VOCAB)
    return model
