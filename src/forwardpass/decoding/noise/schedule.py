"""From a diffusers scheduler's config to a NoiseSchedule. A new method is a class and a row here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from forwardpass.decoding.noise.ddpm import DDIM, DDPM, LCM
from forwardpass.decoding.noise.method import NoiseSchedule, Stepper, Trajectory
from forwardpass.decoding.noise.pndm import PNDM
from forwardpass.decoding.noise.sigmas import DPMSolver, Euler, EulerAncestral
from forwardpass.errors import ParameterError, UnsupportedModelError
from forwardpass.models.fields import Fields, show

__all__ = ["METHODS", "NoiseSchedule", "Stepper", "Trajectory", "read_schedule"]

METHODS: dict[str, type[NoiseSchedule]] = {
    method.name: method for method in (DDPM, DDIM, Euler, EulerAncestral, DPMSolver, LCM, PNDM)
}


def read_schedule(config: Mapping[str, Any], name: str | None = None) -> NoiseSchedule:
    """The schedule of a scheduler_config.json, or another method with the same betas and prediction.

    config: the file's values; those that the method does not know are other methods' and are passed over, as in
    diffusers' from_config. name: a diffusers class instead of the config's own. ParameterError: no such method;
    UnsupportedModelError: the config's own method, or a value that would change the pictures, is not implemented;
    ModelFileError: a value of a wrong type or outside its interval.
    """
    fields = Fields(config, "scheduler_config.json")
    supported = ", ".join(METHODS)
    if name is not None:
        if name not in METHODS:
            raise ParameterError(f"scheduler: expected one of {supported}; got {show(name)}")
        return METHODS[name](fields)
    own = fields.text("_class_name")
    if own not in METHODS:
        raise UnsupportedModelError(f"scheduler_config.json: _class_name: {show(own)} is not implemented; supported "
                                    f'are {supported}. Draw with one of them: scheduler="DPMSolverMultistepScheduler"')
    return METHODS[own](fields)
