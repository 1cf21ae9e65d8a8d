"""A rotated NVFP4 checkpoint by llm-compressor: rotations first, then rounding to nearest, calibrated on a text.

    python make_checkpoint.py NAME MODEL TEXT OUT

NAME is a key of RECIPES, MODEL a BF16 folder. Calibration: the first 32 windows of 256 tokens of TEXT. One thread, so that
the result does not depend on their number.
"""

import sys

import common  # noqa: F401  (offline, no progress bars)
import torch
from datasets import Dataset
from llmcompressor import oneshot
from llmcompressor.modifiers.quantization import QuantizationModifier
from llmcompressor.modifiers.transform import QuIPModifier, SpinQuantModifier
from transformers import AutoModelForCausalLM, AutoTokenizer

RECIPES = {
    "llmc-quip-v16": lambda: QuIPModifier(rotations=["v"], transform_type="hadamard", transform_block_size=16,
                                          targets="Linear", ignore="lm_head"),
    "llmc-spinquant": lambda: SpinQuantModifier(rotations=["R1", "R2"], transform_type="hadamard", transform_block_size=64),
}
SAMPLES, LENGTH = 32, 256


def make(name, source, text, out):
    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(source)
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.bfloat16)
    with open(text, encoding="utf-8") as file:
        ids = torch.tensor(tokenizer(file.read(), add_special_tokens=False)["input_ids"][:SAMPLES * LENGTH])
    samples = Dataset.from_dict({"input_ids": ids.view(SAMPLES, LENGTH).tolist(), "attention_mask": [[1] * LENGTH] * SAMPLES})
    torch.manual_seed(0)
    round_to_nearest = QuantizationModifier(targets="Linear", scheme="NVFP4", ignore=["lm_head"])
    with torch.enable_grad():
        oneshot(model=model, recipe=[RECIPES[name](), round_to_nearest], dataset=samples, max_seq_length=LENGTH,
                num_calibration_samples=SAMPLES)
    model.save_pretrained(out, save_compressed=True)
    tokenizer.save_pretrained(out)


if __name__ == "__main__":
    make(*sys.argv[1:])
