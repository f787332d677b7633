"""The image processor of a model, for trainers and the reference engine. Needs transformers."""

from typing import Any


def image_processor(model: str) -> Any:
    """Returns the processor that transformers takes, as vLLM does: with torchvision where that is
    installed, else on PIL. They resize a picture in slightly different ways, so trainer and engine
    should have the same."""
    from transformers import AutoImageProcessor

    try:
        return AutoImageProcessor.from_pretrained(model)
    except ImportError:  # transformers before 5.12 without torchvision
        from transformers.models.qwen2_vl import image_processing_pil_qwen2_vl as on_pil

        return on_pil.Qwen2VLImageProcessorPil.from_pretrained(model)
