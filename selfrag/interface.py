"""What plug-ins may use of selfrag: names that stay where they are. `docs/reference/extending.md` documents each.

The extensions of this repository use this module too, so that what is behind it can move. A name's own module is
imported when the name is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from selfrag.common.own_packages import own_name

if TYPE_CHECKING:
    from retrieval.conditions import (
        OPERATORS,
        Condition,
        parse_condition,
    )
    from retrieval.content import (
        ENCODINGS,
        Content,
    )
    from retrieval.corpus import (
        Corpus,
        Row,
    )
    from retrieval.documents import (
        DocumentFormat,
    )
    from retrieval.documents.document import (
        MAX_BYTES,
        MAX_HEADING,
        Document,
        DocumentBuilder,
        ReadingOptions,
        Section,
        Sheet,
        Skipped,
        Table,
        check_size,
        lay_out_table,
    )
    from retrieval.documents.formulas import (
        MATHML,
        FormulaPart,
        FormulaTerm,
        FormulaWriter,
        write_script,
    )
    from retrieval.documents.headers import (
        has_digit,
        merge_headers,
        names_columns,
    )
    from retrieval.documents.html import (
        read_html,
    )
    from retrieval.documents.isolation import (
        IsolatedReader,
    )
    from retrieval.documents.list_numbers import (
        format_number,
    )
    from retrieval.encoders import (
        Encoder,
        EncoderCard,
        Template,
    )
    from retrieval.index import (
        MODES,
        encoder_of,
        open_parts,
        require_vectors,
    )
    from retrieval.parquet import (
        VECTOR,
        read_vector_blocks,
        read_vector_size,
    )
    from retrieval.passage import (
        Passage,
        Retriever,
    )
    from retrieval.readers import (
        read_document,
    )
    from retrieval.remote import (
        RemoteCard,
    )
    from retrieval.search import (
        FUSED_ROWS,
        Fusion,
        IndexRetriever,
        Query,
        Ranking,
        different_texts,
    )
    from retrieval.sentences import (
        SentenceFinder,
        Span,
        sentence_finder,
    )
    from retrieval.splitting import (
        Splitting,
    )
    from retrieval.vector_writing import (
        live_blocks,
    )
    from retrieval.vectors import (
        NPY_ERRORS,
        Matrix,
        as_float32,
    )
    from retrieval.words import (
        ANALYZER,
        WordAnalyzer,
    )
    from selfrag.api import (
        SelfRAG,
    )
    from selfrag.cli.fields import (
        Fields,
        FieldValues,
    )
    from selfrag.cli.options import (
        DataFolder,
        EngineChoice,
        engine_options,
        quiet,
        show_markdown,
    )
    from selfrag.cli.results import (
        CommandResult,
    )
    from selfrag.cli.running import (
        Replaced,
        check_free,
        refuse_options,
    )
    from selfrag.common.atomic import (
        write_json,
        write_pieces,
        write_text,
        writing,
    )
    from selfrag.common.cache import (
        fingerprint,
        publish,
    )
    from selfrag.common.checks import (
        check_choice,
        check_float,
        check_int,
        check_url,
        parse_settings,
        unknown_name,
    )
    from selfrag.common.errors import (
        DecodingError,
        EngineError,
        SearchError,
        UserError,
        count_of,
        generation_error,
        require,
    )
    from selfrag.common.jsonl import (
        read_jsonl,
        write_jsonl,
    )
    from selfrag.common.onnx_files import (
        GRAPH,
        GraphWriter,
        first_line,
        open_session,
    )
    from selfrag.common.pretrained import (
        check_config,
    )
    from selfrag.common.progress import (
        Progress,
    )
    from selfrag.common.provenance import (
        commit,
        model_files,
        package_version,
        sha256,
        versions,
    )
    from selfrag.common.reading import (
        cache_home,
        parse_json,
        read_json,
        regular_file,
        user_path,
    )
    from selfrag.common.tensor_files import (
        TensorFiles,
        weight_files,
    )
    from selfrag.common.untrusted import (
        clean,
        cut,
        printable,
        replace_surrogates,
        unmarked,
    )
    from selfrag.common.validation import (
        validate,
    )
    from selfrag.decoding.answer import (
        Answer,
        Segment,
        Usage,
        segments_of,
    )
    from selfrag.decoding.beam import (
        decode,
    )
    from selfrag.decoding.policy import (
        Action,
        AnswerReason,
        Decoding,
        WithoutEvidence,
    )
    from selfrag.decoding.segments import (
        geometric_mean,
    )
    from selfrag.decoding.sentence_ends import (
        sentence_end,
    )
    from selfrag.decoding.trace import (
        ROOT,
        Decision,
        Node,
        Status,
        Trace,
        trace_of,
    )
    from selfrag.decoding.tree import (
        Commit,
        Decoder,
        RequestBatch,
    )
    from selfrag.engines import (
        load_engine,
        ready_engine,
    )
    from selfrag.engines.base import (
        Architecture,
        Engine,
        EngineLimits,
    )
    from selfrag.engines.batching import (
        MIN_SHARED,
        BatchingEngine,
        PrefixCache,
        RunningRequest,
        shared_prefixes,
    )
    from selfrag.evaluation.comparison import (
        Draws,
        average,
        bootstrap,
        bounds_of,
        read_run,
        read_runs,
        run_folders,
    )
    from selfrag.evaluation.intervals import (
        Estimate,
        bracketed,
        kappa,
        mean,
    )
    from selfrag.evaluation.items import (
        Item,
    )
    from selfrag.evaluation.metrics.answers import (
        exact_match,
        token_f1,
    )
    from selfrag.evaluation.metrics.registry import (
        metric,
        ratio,
        scale_of,
    )
    from selfrag.evaluation.normalisation import (
        contains_any,
        normalise,
    )
    from selfrag.evaluation.pareto import (
        ParetoPoint,
        pareto_front,
    )
    from selfrag.evaluation.presets import (
        SCHEMAS,
        Preset,
        Protocol,
        QuestionWording,
    )
    from selfrag.evaluation.records import (
        item_id,
        items_of,
        read_manifest,
    )
    from selfrag.evaluation.report import (
        read_report,
        write_report,
    )
    from selfrag.evaluation.runner import (
        Model,
        Source,
        run_systems,
    )
    from selfrag.evaluation.settings import (
        SourceSettings,
    )
    from selfrag.evaluation.systems import (
        PROTOCOL,
        System,
        named_system,
    )
    from selfrag.evaluation.task import (
        Task,
    )
    from selfrag.evaluation.task_files import (
        TaskFile,
        searched,
    )
    from selfrag.intrinsics.capability import (
        Capability,
        Documents,
        Needs,
    )
    from selfrag.intrinsics.families import (
        AdapterFamily,
        PublishedAdapter,
    )
    from selfrag.intrinsics.named import (
        find_judge,
        open_judge,
    )
    from selfrag.judges.chat import (
        LabelCodec,
    )
    from selfrag.judges.chat_model import (
        ChatModel,
        CutPassages,
        model_of,
    )
    from selfrag.judges.conversation import (
        content_text,
    )
    from selfrag.judges.engine import (
        EngineExecutor,
    )
    from selfrag.judges.external import (
        FunctionJudge,
        as_reflection,
    )
    from selfrag.judges.rendering import (
        Renderer,
    )
    from selfrag.judges.wire import (
        ChatPrompt,
        Completion,
        Executor,
        Gold,
        ModelRequest,
        PromptPiece,
        Slot,
        Target,
        Teachable,
        TextPrompt,
        TokenLogprob,
    )
    from selfrag.loading import (
        index_directory,
        load_checkpoint,
        load_retriever,
        load_tokenizer,
        load_training_tokenizer,
        resolve_model,
    )
    from selfrag.prompting import (
        Chat,
        Prompting,
    )
    from selfrag.reflection.findings import (
        Citation,
        Code,
        Finding,
        Reflection,
    )
    from selfrag.reflection.inputs import (
        JudgeInput,
        Message,
        Site,
        SiteKind,
    )
    from selfrag.reflection.judge import (
        Cost,
        Judge,
        Scope,
    )
    from selfrag.reflection.judgment import (
        Judgment,
        JudgmentSource,
    )
    from selfrag.reflection.labels import (
        GROUPS,
        ISREL,
        ISSUP,
        ISUSE,
        RETRIEVE,
        Label,
        LabelSet,
        Role,
    )
    from selfrag.reflection.requests import (
        Constraint,
        Failed,
        Finish,
        Generate,
        Generated,
        Internals,
        RequestResult,
        Retrieve,
        Retrieved,
        Steps,
        ask,
    )
    from selfrag.reflection.weights import (
        Weights,
    )
    from selfrag.render.tables import (
        markdown_section,
    )
    from selfrag.runtime import (
        Call,
        OwnsEngine,
        drive,
        finish,
    )
    from selfrag.runtime.batching import (
        SharedRetriever,
    )
    from selfrag.runtime.formats import (
        FormatModel,
    )
    from selfrag.runtime.sessions import (
        Ticket,
        TicketResult,
    )
    from selfrag.serving.citations import (
        Piece,
        Writer,
        document_metadata,
        selfrag_object,
        url_of,
    )
    from selfrag.tokenization import (
        HFTextCodec,
        TextCodec,
    )

_NAMES = {
    "selfrag.runtime.formats": "FormatModel",
    "retrieval.splitting": "Splitting",
    "retrieval.readers": "read_document",
    "retrieval.documents.isolation": "IsolatedReader",
    "retrieval.content": "Content ENCODINGS",
    "retrieval.parquet": "VECTOR read_vector_blocks read_vector_size",
    "retrieval.words": "ANALYZER WordAnalyzer",
    "retrieval.vectors": "Matrix NPY_ERRORS as_float32",
    "retrieval.remote": "RemoteCard",
    "retrieval.corpus": "Row Corpus",
    "retrieval.conditions": "Condition OPERATORS parse_condition",
    "retrieval.vector_writing": "live_blocks",
    "retrieval.index": "open_parts require_vectors MODES encoder_of",
    "retrieval.documents": "DocumentFormat",
    "retrieval.documents.document": (
        "Document DocumentBuilder MAX_BYTES MAX_HEADING ReadingOptions Section Sheet "
        "Skipped Table check_size lay_out_table"
    ),
    "retrieval.documents.formulas": "FormulaPart FormulaTerm FormulaWriter MATHML write_script",
    "retrieval.documents.headers": "has_digit merge_headers names_columns",
    "retrieval.documents.html": "read_html",
    "retrieval.documents.list_numbers": "format_number",
    "retrieval.encoders": "Encoder EncoderCard Template",
    "retrieval.passage": "Passage Retriever",
    "retrieval.search": "IndexRetriever FUSED_ROWS Fusion Query Ranking different_texts",
    "retrieval.sentences": "SentenceFinder Span sentence_finder",
    "selfrag.api": "SelfRAG",
    "selfrag.cli.fields": "FieldValues Fields",
    "selfrag.cli.options": "engine_options EngineChoice quiet show_markdown DataFolder",
    "selfrag.cli.results": "CommandResult",
    "selfrag.cli.running": "Replaced check_free refuse_options",
    "selfrag.common.atomic": "write_json write_text writing write_pieces",
    "selfrag.common.cache": "fingerprint publish",
    "selfrag.common.checks": "check_choice check_float check_int check_url parse_settings unknown_name",
    "selfrag.common.errors": (
        "count_of DecodingError EngineError generation_error require SearchError "
        "UserError"
    ),
    "selfrag.common.jsonl": "read_jsonl write_jsonl",
    "selfrag.common.onnx_files": "GRAPH GraphWriter first_line open_session",
    "selfrag.common.pretrained": "check_config",
    "selfrag.common.progress": "Progress",
    "selfrag.common.provenance": "commit model_files package_version sha256 versions",
    "selfrag.common.reading": "cache_home parse_json read_json user_path regular_file",
    "selfrag.common.tensor_files": "TensorFiles weight_files",
    "selfrag.common.untrusted": "clean cut printable replace_surrogates unmarked",
    "selfrag.common.validation": "validate",
    "selfrag.decoding.answer": "Answer Segment Usage segments_of",
    "selfrag.decoding.beam": "decode",
    "selfrag.decoding.policy": "Action AnswerReason Decoding WithoutEvidence",
    "selfrag.decoding.segments": "geometric_mean",
    "selfrag.decoding.sentence_ends": "sentence_end",
    "selfrag.decoding.trace": "Decision Node ROOT Status Trace trace_of",
    "selfrag.decoding.tree": "Commit Decoder RequestBatch",
    "selfrag.engines": "load_engine ready_engine",
    "selfrag.engines.base": "Architecture Engine EngineLimits",
    "selfrag.engines.batching": "BatchingEngine MIN_SHARED PrefixCache RunningRequest shared_prefixes",
    "selfrag.evaluation.comparison": "average bootstrap bounds_of Draws read_run read_runs run_folders",
    "selfrag.evaluation.intervals": "bracketed Estimate kappa mean",
    "selfrag.evaluation.items": "Item",
    "selfrag.evaluation.metrics.answers": "exact_match token_f1",
    "selfrag.evaluation.metrics.registry": "metric ratio scale_of",
    "selfrag.evaluation.normalisation": "contains_any normalise",
    "selfrag.evaluation.pareto": "pareto_front ParetoPoint",
    "selfrag.evaluation.presets": "Preset Protocol QuestionWording SCHEMAS",
    "selfrag.evaluation.records": "read_manifest item_id items_of",
    "selfrag.evaluation.report": "read_report write_report",
    "selfrag.evaluation.runner": "Model run_systems Source",
    "selfrag.evaluation.settings": "SourceSettings",
    "selfrag.evaluation.systems": "System named_system PROTOCOL",
    "selfrag.evaluation.task": "Task",
    "selfrag.evaluation.task_files": "TaskFile searched",
    "selfrag.intrinsics.capability": "Capability Documents Needs",
    "selfrag.intrinsics.families": "AdapterFamily PublishedAdapter",
    "selfrag.intrinsics.named": "find_judge open_judge",
    "selfrag.judges.chat": "LabelCodec",
    "selfrag.judges.chat_model": "ChatModel CutPassages model_of",
    "selfrag.judges.conversation": "content_text",
    "selfrag.judges.engine": "EngineExecutor",
    "selfrag.judges.external": "FunctionJudge as_reflection",
    "selfrag.judges.rendering": "Renderer",
    "selfrag.judges.wire": (
        "ChatPrompt Completion Executor Gold ModelRequest PromptPiece Slot Target "
        "Teachable TextPrompt TokenLogprob"
    ),
    "selfrag.loading": (
        "index_directory load_checkpoint load_retriever load_tokenizer "
        "load_training_tokenizer resolve_model"
    ),
    "selfrag.prompting": "Chat Prompting",
    "selfrag.reflection.findings": "Citation Code Finding Reflection",
    "selfrag.reflection.inputs": "JudgeInput Message Site SiteKind",
    "selfrag.reflection.judge": "Cost Judge Scope",
    "selfrag.reflection.judgment": "Judgment JudgmentSource",
    "selfrag.reflection.labels": "GROUPS ISREL ISSUP ISUSE Label LabelSet RETRIEVE Role",
    "selfrag.reflection.requests": (
        "Constraint Failed Finish Generate Generated Internals RequestResult Retrieve "
        "Retrieved Steps ask"
    ),
    "selfrag.reflection.weights": "Weights",
    "selfrag.render.tables": "markdown_section",
    "selfrag.runtime": "Call OwnsEngine drive finish",
    "selfrag.runtime.batching": "SharedRetriever",
    "selfrag.runtime.sessions": "Ticket TicketResult",
    "selfrag.serving.citations": "Piece Writer document_metadata selfrag_object url_of",
    "selfrag.tokenization": "HFTextCodec TextCodec",
}
"""Names by the module that defines them."""
_HOMES = {name: module for module, names in _NAMES.items() for name in names.split()}

__all__ = [
    # errors
    "generation_error",
    "DecodingError",
    "EngineError",
    "SearchError",
    "UserError",
    "count_of",
    "require",
    # checks
    "check_choice",
    "check_float",
    "check_int",
    "check_url",
    "unknown_name",
    "validate",
    # reading and writing
    "parse_json",
    "read_json",
    "user_path",
    "read_jsonl",
    "write_jsonl",
    "write_json",
    "write_text",
    "writing",
    "Progress",
    "commit",
    "model_files",
    "package_version",
    "sha256",
    "versions",
    # untrusted
    "clean",
    "cut",
    "printable",
    "replace_surrogates",
    # passages
    "Passage",
    "Retriever",
    "Encoder",
    "IndexRetriever",
    "FormatModel",
    "DataFolder",
    "PROTOCOL",
    "unmarked",
    "run_folders",
    "write_pieces",
    "items_of",
    "item_id",
    "mean",
    "kappa",
    "Splitting",
    "read_document",
    "IsolatedReader",
    "ENCODINGS",
    "Content",
    "regular_file",
    "read_vector_size",
    "read_vector_blocks",
    "VECTOR",
    "WordAnalyzer",
    "ANALYZER",
    "as_float32",
    "NPY_ERRORS",
    "Matrix",
    "different_texts",
    "Ranking",
    "Query",
    "Fusion",
    "FUSED_ROWS",
    "RemoteCard",
    "encoder_of",
    "MODES",
    "Template",
    "EncoderCard",
    "Corpus",
    "Row",
    "parse_condition",
    "OPERATORS",
    "Condition",
    "live_blocks",
    "require_vectors",
    "open_parts",
    "SentenceFinder",
    "Span",
    "sentence_finder",
    "index_directory",
    "load_checkpoint",
    "load_retriever",
    "load_tokenizer",
    "load_training_tokenizer",
    "resolve_model",
    "check_config",
    "TensorFiles",
    "weight_files",
    "GRAPH",
    "GraphWriter",
    "open_session",
    "first_line",
    "cache_home",
    "fingerprint",
    "publish",
    # engines
    "EngineLimits",
    "BatchingEngine",
    "RunningRequest",
    "PrefixCache",
    "shared_prefixes",
    "MIN_SHARED",
    "Ticket",
    "TicketResult",
    # documents
    "Document",
    "DocumentBuilder",
    "MAX_BYTES",
    "MAX_HEADING",
    "ReadingOptions",
    "Section",
    "Sheet",
    "Skipped",
    "Table",
    "check_size",
    "lay_out_table",
    "read_html",
    "format_number",
    "DocumentFormat",
    "FormulaPart",
    "FormulaTerm",
    "FormulaWriter",
    "MATHML",
    "write_script",
    "has_digit",
    "merge_headers",
    "names_columns",
    # requests
    "Constraint",
    "Failed",
    "Finish",
    "Generate",
    "Generated",
    "Internals",
    "RequestResult",
    "Retrieve",
    "Retrieved",
    "Steps",
    "ask",
    # engines
    "load_engine",
    "ready_engine",
    "Architecture",
    "Engine",
    "Chat",
    "Prompting",
    "HFTextCodec",
    "TextCodec",
    "Call",
    "OwnsEngine",
    "drive",
    "finish",
    # decoding
    "decode",
    "geometric_mean",
    "sentence_end",
    "SharedRetriever",
    "Action",
    "AnswerReason",
    "Decoding",
    "WithoutEvidence",
    "Commit",
    "Decoder",
    "RequestBatch",
    # answer
    "SelfRAG",
    "Answer",
    "Segment",
    "Usage",
    "segments_of",
    "Decision",
    "Node",
    "ROOT",
    "Status",
    "Trace",
    "trace_of",
    # judges
    "Cost",
    "Judge",
    "Scope",
    "JudgeInput",
    "Message",
    "Site",
    "SiteKind",
    "GROUPS",
    "ISREL",
    "ISSUP",
    "ISUSE",
    "Label",
    "LabelSet",
    "RETRIEVE",
    "Role",
    "Judgment",
    "JudgmentSource",
    "Citation",
    "Code",
    "Finding",
    "Reflection",
    "FunctionJudge",
    "as_reflection",
    "open_judge",
    "Weights",
    # intrinsics
    "Capability",
    "Documents",
    "Needs",
    "AdapterFamily",
    "PublishedAdapter",
    "LabelCodec",
    # dialects
    "find_judge",
    "CutPassages",
    "model_of",
    "Renderer",
    "ChatModel",
    "ChatPrompt",
    "Completion",
    "EngineExecutor",
    "Executor",
    "Gold",
    "ModelRequest",
    "PromptPiece",
    "Slot",
    "Target",
    "Teachable",
    "TextPrompt",
    "TokenLogprob",
    # evaluation
    "Draws",
    "average",
    "bounds_of",
    "bracketed",
    "exact_match",
    "token_f1",
    "ratio",
    "scale_of",
    "contains_any",
    "normalise",
    "ParetoPoint",
    "pareto_front",
    "read_manifest",
    "read_report",
    "write_report",
    "Model",
    "Source",
    "run_systems",
    "SourceSettings",
    "TaskFile",
    "searched",
    "markdown_section",
    "Item",
    "Task",
    "Estimate",
    "metric",
    "Preset",
    "Protocol",
    "QuestionWording",
    "SCHEMAS",
    "System",
    "named_system",
    "bootstrap",
    "read_run",
    "read_runs",
    # serving
    "Piece",
    "Writer",
    "document_metadata",
    "selfrag_object",
    "url_of",
    "content_text",
    # commands
    "engine_options",
    "quiet",
    "parse_settings",
    "CommandResult",
    "Replaced",
    "check_free",
    "refuse_options",
    "FieldValues",
    "Fields",
    "EngineChoice",
    "show_markdown",
]

if not TYPE_CHECKING:  # else every name would be known to type checkers

    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(own_name(_HOMES[name])), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
