"""The size of a target whose weights are not at hand, by building its class without memory."""

import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from eyas.contract.spec.target_size import TargetSize, size_of_counts
from eyas.contract.spec.target_spec import TargetSpec
from eyas.models.target_loading import TargetUnloadable, text_model_options


def size_of_config(spec: TargetSpec, *, bytes_per_parameter: float = 2.0) -> TargetSize:
    """The text model that `spec` describes: seconds for a trillion parameters.

    Args:
        bytes_per_parameter: as it would be stored; 2 for bf16.

    Raises:
        TargetUnloadable: transformers has no class for it.
    """
    kind, options = text_model_options(spec)
    if kind not in CONFIG_MAPPING:
        raise TargetUnloadable(
            f"the size of a {kind} is not known",
            spec.where,
            "its weights are not there, and transformers has no class for it",
            "give the folder with the weights",
        )
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **options))
    counted = [(name, parameter.numel()) for name, parameter in model.named_parameters()]
    return size_of_counts(spec, counted, num_bytes=int(bytes_per_parameter * sum(count for _, count in counted)))
