"""What a request for a chat completion may say. Fields that change nothing here are ignored, as OpenAI servers do."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from app.api.errors import ApiError, bad_request
from engines.config import CompressionConfig, SamplingConfig

# Where a request does not say how long the answer may be. The page's 64 would cut most answers of a large model.
DEFAULT_MAX_TOKENS = 512


class Part(BaseModel):
    model_config = ConfigDict(extra="ignore")


class TextPart(Part):
    type: Literal["text"]
    text: str


class Link(Part):
    url: str


class ImagePart(Part):
    kind: ClassVar = "image"
    type: Literal["image_url"]
    image_url: Link

    @property
    def url(self) -> str:
        return self.image_url.url


class VideoPart(Part):
    kind: ClassVar = "video"
    type: Literal["video_url"]
    video_url: Link

    @property
    def url(self) -> str:
        return self.video_url.url


class FileId(Part):
    file_id: str = Field(pattern=r"^file-")


class FilePart(Part):
    """An uploaded image or video."""

    kind: ClassVar = "file"
    type: Literal["file"]
    file: FileId

    @property
    def url(self) -> str:
        return self.file.file_id


MediaPart = ImagePart | VideoPart | FilePart


def _as_parts(content: Any) -> Any:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


class Message(Part):
    role: str
    content: Annotated[
        list[Annotated[TextPart | ImagePart | VideoPart | FilePart, Field(discriminator="type")]],
        BeforeValidator(_as_parts),
    ]


class StreamOptions(Part):
    include_usage: bool = False


# Not done here, and not harmless: whoever sends them expects another answer. By the values that ask for nothing.
NOT_DONE: dict[str, tuple[Any, ...]] = {
    "n": (None, 1),
    "stop": (None, "", []),
    "tools": (None, []),
    "functions": (None, []),
    "tool_choice": (None, "none", "auto"),
    "response_format": (None, {"type": "text"}),
    "logprobs": (None, False),
    "top_logprobs": (None, 0),
    "logit_bias": (None, {}),
    "frequency_penalty": (None, 0),
    "presence_penalty": (None, 0),
    "audio": (None,),
    "modalities": (None, ["text"]),
}


class ChatRequest(BaseModel):
    model_config = ConfigDict(extra="allow", allow_inf_nan=False)

    model: str
    messages: list[Message] = Field(min_length=1)
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    user: str | None = Field(None, max_length=256)
    """The caller's own user, with cache.scope=user."""
    prompt_cache_key: str | None = Field(None, max_length=256)
    """The caller's own session, with cache.scope=session."""

    # Ours, for openai's client in `extra_body`.
    compression: dict[str, Any] | None = None
    """{"settings": ["pruning.keep_ratio=0.5", ...]}, or a CompressionConfig as nested objects."""
    return_trace: bool | None = False
    resource: str | None = Field(None, max_length=256)
    """The caller's own name of what is asked about, with cache.scope=resource."""

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    def check(self) -> None:
        """Refuse what is not done here."""
        for name, neutral in NOT_DONE.items():
            value = (self.model_extra or {}).get(name)
            if value not in neutral:
                raise bad_request(f"{name} is not supported here; leave it out.", name, "unsupported_parameter")
        if self.stream_options is not None and not self.stream:
            raise bad_request("stream_options is for streamed answers only; set stream to true.", "stream_options")

    def sampling(self) -> SamplingConfig:
        """Greedy unless asked otherwise, like the page."""
        longest = self.max_completion_tokens if self.max_completion_tokens is not None else self.max_tokens
        asked: dict[str, Any] = {
            "max_new_tokens": DEFAULT_MAX_TOKENS if longest is None else longest,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "seed": self.seed,
        }
        try:
            return SamplingConfig(**{name: value for name, value in asked.items() if value is not None})
        except ValueError as error:
            sentence = str(error).replace("sampling.max_new_tokens", "max_tokens").replace("sampling.", "")
            raise bad_request(sentence, sentence.partition(" ")[0]) from error

    def config(self) -> CompressionConfig:
        """The full model unless asked otherwise."""
        asked = self.compression or {}
        try:
            if "settings" not in asked:
                return CompressionConfig.from_dict(asked)
            settings = asked["settings"]
            if len(asked) > 1 or not isinstance(settings, list) or not all(isinstance(item, str) for item in settings):
                raise ValueError(
                    'compression must be {"settings": ["group.name=value", ...]} or nested settings, not both.'
                )
            return CompressionConfig.full().with_settings(settings)
        except (ValueError, TypeError) as error:
            raise bad_request(str(error), "compression") from error


def parse(body: bytes) -> ChatRequest:
    """The request in a body, or ApiError with the first thing that is wrong with it."""
    try:
        request = ChatRequest.model_validate_json(body)
    except ValidationError as error:
        raise _first_problem(error) from None
    request.check()
    return request


def _first_problem(error: ValidationError) -> ApiError:
    # `include_input=False`: the input may be a whole picture.
    problem = error.errors(include_url=False, include_context=False, include_input=False)[0]
    where = ".".join(str(step) for step in problem["loc"])
    what = problem["msg"].rstrip(".")
    return bad_request(f"{where}: {what}." if where else f"{what}.", where or None)
