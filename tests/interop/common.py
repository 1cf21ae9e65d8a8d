"""What the tests of interoperation share: loading by transformers, and halfbyte's own weights beside it."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "cli"))

import support  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402
from safetensors.torch import load_file  # noqa: E402
from support import BUILD, REPOSITORY, TestCase, halfbyte  # noqa: E402
from tqdm import tqdm  # noqa: E402
from transformers import AutoModelForCausalLM  # noqa: E402

torch.set_num_threads(2)
torch.set_grad_enabled(False)
make_tqdm = tqdm.__init__
tqdm.__init__ = lambda self, *args, **options: make_tqdm(self, *args, **{**options, "disable": True})  # no way to ask for it
transformers.utils.logging.disable_progress_bar()
transformers.utils.logging.set_verbosity_error()

SHARED = REPOSITORY.parent / "shared/data"
DEQUANTIZE = BUILD / "tests/interop/dequantize"
U = 2.0 ** -24  # the largest relative error of one rounding to FP32

results = []  # (what was compared, what was seen), for the table that run.py prints


def record(what, seen):
    results.append((what, seen))


def load(folder, **options):
    """The model, and what from_pretrained says of missing, unexpected and mismatched tensors."""
    return AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True, **options)


def load_decompressed(folder, dtype=None):
    """With the weights that compressed-tensors makes of the codes when the model runs first: BF16, or widened to dtype."""
    model, _ = load(folder)
    logits(model, [0])
    return torch.nn.Module.to(model, dtype) if dtype else model  # transformers' own to() refuses quantised models


def quantized_modules(model):
    return {name for name, module in model.named_modules() if hasattr(module, "quantization_scheme")}


def leave_activations(model):
    """W4A16: the hooks of compressed-tensors on a W4A4 model do nothing any more."""
    for module in model.modules():
        if hasattr(module, "quantization_scheme"):
            module.quantization_enabled = False
    return model


def stored(folder):
    """Name -> tensor, whatever the number of files."""
    tensors = {}
    for path in sorted(Path(folder).glob("*.safetensors")):
        if not path.name.startswith("reference"):
            tensors |= load_file(path)
    return tensors


def halfbyte_logits(folder, ids, arithmetic):
    with tempfile.TemporaryDirectory() as work:
        out = Path(work) / "logits.safetensors"
        result = halfbyte("logits", "-m", folder, "--tokens", ",".join(map(str, ids)), "--arithmetic", arithmetic, "-o", out)
        assert result.code == 0, result
        return load_file(out)["logits"]


def logits(model, ids):
    return model(torch.tensor([ids]), use_cache=False).logits[0]


class Case(TestCase):
    def dequantized(self, folder, dtype):
        """A dense Hugging Face folder with the weights that halfbyte's library makes of the codes."""
        out = Path(tempfile.mkdtemp(dir=self.work)) / dtype
        subprocess.run([DEQUANTIZE, folder, out, dtype], check=True, timeout=600)
        return out

    def check_loads(self, folder):
        """Nothing missing, nothing left over, tied and quantised as declared; it runs. The model is returned."""
        model, said = load(folder)
        self.assertEqual({key: value for key, value in said.items() if value}, {})
        self.assertEqual(model.dtype, torch.bfloat16)
        config = json.loads((Path(folder) / "config.json").read_text())
        self.assertEqual(model.lm_head.weight is model.model.embed_tokens.weight
                         if hasattr(model.lm_head, "weight") else False, config["tie_word_embeddings"])
        rows = self.json("inspect", folder, "--tensors")["tensors"]
        self.assertEqual(quantized_modules(model),
                         {row["name"].removesuffix(".weight") for row in rows if row["format"] in ("NVFP4", "FP8")})
        self.assertTrue(torch.isfinite(logits(model, [1, 2, 3])).all())
        return model

    def check_weights(self, folder):
        """The weights that compressed-tensors makes equal halfbyte's byte for byte in BF16, but at ties.

        With exact v = code * SF / g, halfbyte rounds fl((code * SF) * fl(1/g)) and compressed-tensors
        fl(code * fl(SF / g)): two roundings to FP32 each, so both lie within (2U + U^2)|v| of v before the rounding to
        BF16. Where the midpoint of two BF16 numbers lies as near, the one may round up and the other down. That happens:
        g = fl(2688/amax) makes v = (code * SF) * amax / 2688, and for a code * SF that is a multiple of 21 this is a
        number of few bits, often a midpoint.
        Returns (weights, weights that differ).
        """
        theirs = load_decompressed(folder)
        modules, ours, files = quantized_modules(theirs), stored(self.dequantized(folder, "bf16")), stored(folder)
        theirs = theirs.state_dict()
        count = different = 0
        for name, weight in ours.items():
            module = name.removesuffix(".weight")
            if module not in modules:
                torch.testing.assert_close(theirs[name], weight.bfloat16(), rtol=0, atol=0)
                continue
            self.assertEqual((theirs[name].dtype, theirs[name].shape), (torch.bfloat16, weight.shape))
            count += weight.numel()
            if files.get(name, weight).dtype == torch.float8_e4m3fn:  # a product of two numbers of few bits, rounded once
                torch.testing.assert_close(theirs[name], weight, rtol=0, atol=0)
                continue
            at = (theirs[name].view(torch.int16) != weight.view(torch.int16)).nonzero(as_tuple=True)
            different += len(at[0])
            low, high = torch.minimum(theirs[name][at], weight[at]).double(), torch.maximum(theirs[name][at], weight[at]).double()
            self.assertTrue((torch.nextafter(theirs[name][at], weight[at]) == weight[at]).all())  # neighbours
            row, column = at
            byte = files[module + ".weight_packed"][row, column // 2].int()
            code = torch.where(column % 2 == 0, byte & 15, byte >> 4)
            e2m1 = torch.tensor([0, .5, 1, 1.5, 2, 3, 4, 6], dtype=torch.float64)
            exact = e2m1[code & 7] * torch.where(code < 8, 1.0, -1.0) * files[module + ".weight_scale"][row, column // 16].double()
            exact /= files[module + ".weight_global_scale"].double()
            self.assertTrue(((exact - (low + high) / 2).abs() <= 2.001 * U * exact.abs()).all(), f"{name}: no tie")
        self.assertEqual(len(modules), sum(name.removesuffix(".weight") in modules for name in ours))
        return count, different
