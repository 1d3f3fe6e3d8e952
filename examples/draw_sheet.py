"""A sheet of pictures out of noise, how one of them comes about, and why a seed is enough to draw it again.

    python examples/draw_sheet.py [FILE.png] [MODEL]

MODEL is a name of the catalogue or a folder of diffusers'; of one that reads texts change LABELS to sentences.
"""

from __future__ import annotations

import sys

import numpy as np
from PIL import Image

import forwardpass

LABELS = ["Ankle boot", "Bag", "Trouser"]
EACH, STEPS, SEED = 2, 8, 7


def main(path: str = "sheet.png", name: str = "tiny-dit") -> None:
    with forwardpass.load(name) as model:
        print("model can:", ", ".join(model.tasks))
        seen = []

        def after_a_step(step, timestep, latents, of):
            """of: which picture it is, of how many steps; its preview() is a picture of what is there by now."""
            if of.picture == 0 and step % 2 == 1:
                seen.append(of.preview())
                print(f"step {step + 1} of {of.steps}, timestep {timestep:.0f}: numbers deviate by {latents.std():.2f}")

        drawing = model.draw(LABELS, num_images_per_prompt=EACH, num_inference_steps=STEPS, seed=SEED,
                             callback_on_step_end=after_a_step)
        width, height = drawing.images[0].size
        sheet = Image.new(drawing.images[0].mode, (EACH * width, len(LABELS) * height))
        for i, image in enumerate(drawing.images):  # those of the first label first
            sheet.paste(image, (i % EACH * width, i // EACH * height))
        sheet.resize((4 * sheet.width, 4 * sheet.height), Image.Resampling.NEAREST).save(path)
        print(f"{len(drawing.images)} pictures of {width} x {height} pixels, {drawing.timings['total']:.2f} s: {path}")
        print("seen on the way:", len(seen), "pictures")

        # The fourth picture once more, by itself: its label and its seed are all that it is made of.
        again = model.draw(drawing.prompts[3], seed=drawing.seeds[3], num_inference_steps=STEPS).images[0]
        print(f"{drawing.prompts[3]}, seed {drawing.seeds[3]}, the same picture alone:",
              np.array_equal(np.asarray(again), np.asarray(drawing.images[3])))


if __name__ == "__main__":
    main(*sys.argv[1:3])
