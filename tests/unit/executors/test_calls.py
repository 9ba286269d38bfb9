"""Encoding of calls: type descriptions, code hashes, frames and error texts."""

import json

import pytest

from fennel_core.executors import protocol
from fennel_core.executors.call_failures import call_failure
from fennel_core.executors.calls import (
    AssignCall,
    ExtractCall,
    FilterCall,
    TransformCall,
    WarmCall,
    code_hash,
    code_text,
    describe,
    header_of,
)
from fennel_core.executors.errors import CodeImportFailed, ExecutorTimeout, UserCodeFailed
from fennel_core.executors.internal_errors import ProtocolError
from fennel_core.vocab import dtypes as d
from fennel_core.wire.pycode import PyCode

LAMBDA = PyCode("D_wrapper", "", "lambda df: df", "def D_wrapper(df): ...", "import os\n", (), ())
NAMED = PyCode(
    "D_wrapper",
    "",
    "def double(df):\n    return df",
    "def D_wrapper(df): ...",
    "import os\n",
    (),
    (),
)
A = d.Field("a", d.Int())


@pytest.mark.parametrize(
    ("dtype", "description"),
    [
        (d.Int(), "i"),
        (d.Optional(d.Str()), ["optional", "s"]),
        (d.List(d.Map(d.Date())), ["list", ["map", "d"]]),
        (d.Struct("P", (d.Field("x", d.Decimal(2)),)), ["struct", "P", [["x", ["decimal", 2]]]]),
        (d.Between(d.Int(), 0, 9), ["between", "i", 0, 9, False, False]),
        (d.OneOf(d.Str(), ("a", "b")), ["oneof", "s", ["a", "b"]]),
        (d.Regex("x+"), ["regex", "x+"]),
        (d.Embedding(3), ["embedding", 3]),
    ],
)
def test_a_description_holds_a_whole_type_in_json(dtype, description):
    assert describe(dtype) == description
    assert json.loads(json.dumps(description)) == description


def test_an_extractors_code_is_glued_to_its_imports_and_others_are_not():
    assert code_text(LAMBDA, glued=True) == "import os\ndef D_wrapper(df): ..."
    assert code_text(LAMBDA, glued=False) == "import os\n\ndef D_wrapper(df): ..."


def test_code_is_cached_apart_by_text_entry_point_and_module():
    other_entry = PyCode("other", "", "", LAMBDA.generated_code, LAMBDA.imports, (), ())
    assert (
        len({code_hash(LAMBDA, None), code_hash(LAMBDA, "F.e"), code_hash(other_entry, None)}) == 3
    )
    assert code_hash(LAMBDA, None) == code_hash(NAMED, None)  # core_code is not executed


def test_a_warmed_extractor_is_the_one_that_is_called():
    extract = ExtractCall(LAMBDA, "F", "e", (A,), (d.Field("F.b", d.Int()),), ())
    assert (
        json.loads(header_of(extract))["code"]
        == json.loads(header_of(WarmCall(LAMBDA, "F.e", "F.e")))["code"]
    )


def test_a_frame_is_read_back_from_its_prefix():
    workspace, scope = protocol.digest("shop"), protocol.digest("shop", "main@1")
    frame = protocol.pack(b"{}", b"payload", 250, 7, workspace, scope)
    prefix = protocol.unpack_prefix(frame[: protocol.PREFIX.size])
    assert prefix == protocol.FramePrefix(2, 7, 250, 7, workspace, scope)
    with pytest.raises(ProtocolError, match="one release"):
        protocol.unpack_prefix(b"\x09" + frame[1 : protocol.PREFIX.size])


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (
            TransformCall(NAMED, "D.p", (A,), (A,)),
            "Error in transform function `double` for pipeline `D.p`, oh",
        ),
        (
            FilterCall(LAMBDA, "D.p", (A,)),
            "Error in filter function `<lambda>` for pipeline `D.p`, oh",
        ),
        (
            AssignCall(LAMBDA, "D.p", (A,), A),
            "Error in assign node for column `a` for pipeline `D.p`, oh",
        ),
        (
            ExtractCall(LAMBDA, "F", "e", (A,), (A,), ()),
            "Extractor `e` in `F` failed to run with error: oh. ",
        ),
    ],
)
def test_an_exception_of_user_code_has_the_clients_text(call, text):
    error = call_failure(call, protocol.RAISED, "oh", "trace")
    assert isinstance(error, UserCodeFailed)
    assert (str(error), error.message, error.traceback) == (text, "oh", "trace")


def test_an_extractors_invalid_result_has_no_prefix():
    text = (
        "Extractor `e` returned invalid type `<class 'int'>`, expected a pandas series or dataframe"
    )
    assert (
        str(call_failure(ExtractCall(LAMBDA, "F", "e", (A,), (A,), ()), protocol.INVALID, text, ""))
        == text
    )


def test_only_user_codes_own_errors_are_user_code_errors():
    call = FilterCall(LAMBDA, "D.p", (A,))
    assert isinstance(call_failure(call, protocol.IMPORT, "x", ""), CodeImportFailed)
    assert isinstance(call_failure(call, protocol.TIMEOUT, "x", ""), ExecutorTimeout)
    assert not isinstance(call_failure(call, protocol.CRASHED, "x", ""), UserCodeFailed)
