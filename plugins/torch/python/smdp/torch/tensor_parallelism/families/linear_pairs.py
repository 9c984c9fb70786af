"""Pairs of linear layers with elementwise functions between them, and layers behind attention."""

from __future__ import annotations

from typing import Any

from smdp.torch.tensor_parallelism.actions.action import Action
from smdp.torch.tensor_parallelism.actions.linears import Columns, Rows
from smdp.torch.tensor_parallelism.families.divisions import Division, Rule
from smdp.torch.tensor_parallelism.families.separate_linears import LIKE_BART, LIKE_BERT, LIKE_T5, LIKE_VIT


def _pair(*layers: str) -> Rule:
    """Returns a rule for a module whose last layer of these follows the others."""
    *first, last = layers
    children: dict[str, Action] = {**dict.fromkeys(first, Columns()), last: Rows()}

    def rule(module: Any, size: int) -> Division:
        return Division(children)

    return rule


def _first(module: Any, size: int) -> Division:
    # The second layer is in another module, which calls it first, so no dropout comes in between.
    return Division({"dense": Columns()}, is_region=False)


def _second(module: Any, size: int) -> Division:
    return Division({"dense": Rows()}, is_region=False)


RULES: dict[str, Rule] = {
    **{f"{family}Intermediate": _first for family in LIKE_BERT},
    **{f"{family}SelfOutput": _second for family in LIKE_BERT},
    **{f"{family}Output": _second for family in LIKE_BERT},
    "AlbertLayer": _pair("ffn", "ffn_output"),
    # DistilBERT's.
    "FFN": _pair("lin1", "lin2"),
    **{f"{family}DenseActDense": _pair("wi", "wo") for family in LIKE_T5},
    **{f"{family}DenseGatedActDense": _pair("wi_0", "wi_1", "wo") for family in LIKE_T5},
    **{f"{family}EncoderLayer": _pair("fc1", "fc2") for family in LIKE_BART},
    **{f"{family}DecoderLayer": _pair("fc1", "fc2") for family in (*LIKE_BART, "OPT", "XGLM")},
    "CLIPMLP": _pair("fc1", "fc2"),
    **{f"{family}MLP": _pair("fc1", "fc2") for family in LIKE_VIT},
    "GPTNeoMLP": _pair("c_fc", "c_proj"),
    "GPTBigCodeMLP": _pair("c_fc", "c_proj"),
    "CodeGenMLP": _pair("fc_in", "fc_out"),
    "BloomMLP": _pair("dense_h_to_4h", "dense_4h_to_h"),
    "FalconMLP": _pair("dense_h_to_4h", "dense_4h_to_h"),
    "PersimmonMLP": _pair("dense_h_to_4h", "dense_4h_to_h"),
    "MptMLP": _pair("up_proj", "down_proj"),
    "StableLmMLP": _pair("gate_proj", "up_proj", "down_proj"),
}
