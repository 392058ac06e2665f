"""A finished comparison with everything that is needed to judge it later: plain data, to JSON and back."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import platform
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Self, get_type_hints

from pydantic import TypeAdapter, ValidationError

from app.pictures import smaller
from app.session import Phase, Picture, Session
from engines.compare import Comparison
from engines.config import CompressionConfig, SamplingConfig
from engines.media import FrameSampling
from engines.results import SCHEMA_VERSION as RESULT_VERSION
from engines.results import Capabilities, RunResult
from engines.settings_file import assignments, flat

SCHEMA_VERSION = 1
PACKAGES = ("qwen-vl-moe-workbench", "torch", "transformers", "numpy", "av", "opencv-python", "gradio", "plotly")
PICTURE_PX = 512
MOST_PICTURES = 12
# Where every token is: as large as all the rest, and of use only while the run's own checkpoint is at hand.
LEFT_OUT = "registry"
_SAMPLING: TypeAdapter[SamplingConfig] = TypeAdapter(SamplingConfig)
_FRAMES: TypeAdapter[FrameSampling] = TypeAdapter(FrameSampling)


@dataclass(frozen=True)
class Report:
    """What was asked, what both sides answered and cost, and on what. Media go by name; pictures are downscaled."""

    made_at: str
    """ISO 8601, UTC."""
    question: str
    media: tuple[str, ...]
    sampling: SamplingConfig
    frames: FrameSampling
    comparison: Comparison
    pictures: dict[tuple[int, int], Picture]
    """By (item, frame): of each frame group that pruning reports, the first of them."""
    right_answer: str | None
    model: str
    digest: str
    device: str
    versions: dict[str, str]

    @classmethod
    def of(cls, session: Session, capabilities: Capabilities, longest_px: int = PICTURE_PX) -> Self:
        """Of the run that the page shows. ValueError where none is finished."""
        if session.stored is not None:
            return session.stored  # type: ignore[return-value]
        if session.comparison is None or session.asked is None:
            raise ValueError("There is no finished comparison yet; run one first.")
        request, _ = session.asked
        return cls(
            made_at=session.made_at,
            question=request.question,
            media=tuple(path.name for path in request.media),
            sampling=request.sampling,
            frames=request.frames,
            comparison=_lean(session.comparison),
            pictures={
                place: smaller(picture, longest_px)
                for place, picture in sorted(session.pictures.items())[:MOST_PICTURES]
            },
            right_answer=session.right_answer,
            model=capabilities.model,
            digest=capabilities.digest,
            device=capabilities.device,
            versions=versions(),
        )

    @property
    def settings(self) -> tuple[str, ...]:
        """The compressed side's, as `--set` takes them."""
        return assignments(self.comparison.compressed.config)

    def show(self, session: Session) -> None:
        """Put it into a session in place of the run that the session shows."""
        session.begin(0, len(self.comparison.pairs), self.right_answer)
        for side, result in zip(session.sides, self.comparison.pairs[0], strict=True):
            view = session.sides[side]
            view.phase, view.result, view.text, view.tokens = Phase.DONE, result, result.answer, len(result.tokens)
        session.comparison, session.pictures = self.comparison, dict(self.pictures)
        session.made_at, session.stored = self.made_at, self

    def to_dict(self) -> dict[str, Any]:
        values = {item.name: getattr(self, item.name) for item in dataclasses.fields(self)}
        later = [[result.to_dict() for result in pair] for pair in self.comparison.later]
        return {
            **values,
            "schema_version": SCHEMA_VERSION,
            "sampling": dataclasses.asdict(self.sampling),
            "frames": dataclasses.asdict(self.frames),
            "settings": list(self.settings),
            "comparison": {
                **self.comparison.to_dict(),
                "later": later,
                "medians": {side: self.comparison.medians(side) for side in ("full", "compressed")},
            },
            "pictures": [
                {"item": item, "frame": frame, **dataclasses.asdict(picture)}
                for (item, frame), picture in self.pictures.items()
            ],
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Inverse of `to_dict`. ValueError, with one sentence, for what another version wrote."""
        found = values.get("schema_version"), values.get("comparison", {}).get("full", {}).get("schema_version")
        if found != (SCHEMA_VERSION, RESULT_VERSION):
            raise ValueError("This result was kept by another version of the workbench, which wrote it differently.")
        said = values["comparison"]
        try:
            comparison = Comparison(
                _result(said["full"]),
                _result(said["compressed"]),
                tuple((_result(one), _result(two)) for one, two in said["later"]),
            )
            return cls(
                made_at=values["made_at"],
                question=values["question"],
                media=tuple(values["media"]),
                sampling=_SAMPLING.validate_python(values["sampling"]),
                frames=_FRAMES.validate_python(values["frames"]),
                comparison=comparison,
                pictures={
                    (one["item"], one["frame"]): Picture(one["url"], one["width"], one["height"])
                    for one in values["pictures"]
                },
                right_answer=values["right_answer"],
                model=values["model"],
                digest=values["digest"],
                device=values["device"],
                versions=dict(values["versions"]),
            )
        except (ValidationError, KeyError, TypeError) as error:
            raise ValueError("This stored result is damaged and cannot be shown.") from error


def versions() -> dict[str, str]:
    """Of Python and the packages that a result depends on, as far as they are installed."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def settings_rows(config: CompressionConfig) -> list[tuple[str, Any]]:
    """Every setting by its name."""
    return list(flat(config.to_dict()))


def _lean(comparison: Comparison) -> Comparison:
    """Without what is not kept: of a repeat, which only measures, what is large and was the same in the first run."""
    full, compressed = (replace(result, registry=None) for result in comparison.pairs[0])
    later = tuple((_figures_only(one), _figures_only(other)) for one, other in comparison.later)
    return Comparison(full, compressed, later)


def _figures_only(result: RunResult) -> RunResult:
    return replace(
        result,
        prune_report=replace(result.prune_report, frames=()),
        vision_report=None,
        precision_report=None,
        kv_report=None,
        registry=None,
    )


def _result(values: Mapping[str, Any]) -> RunResult:
    return RunResult(**{name: adapter.validate_python(values[name]) for name, adapter in _adapters().items()})


@cache
def _adapters() -> dict[str, TypeAdapter[Any]]:
    types = get_type_hints(RunResult)
    return {item.name: TypeAdapter(types[item.name]) for item in dataclasses.fields(RunResult) if item.name != LEFT_OUT}
