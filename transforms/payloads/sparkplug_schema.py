"""The part of Sparkplug B's protobuf schema that readings need, as a descriptor made here.

No generated code and no library of Sparkplug: the runtime of protobuf comes with Beam. Fields that are not declared
(data sets, templates, properties) are passed over by the parser as unknown ones. Texts are declared as bytes, which
look the same: versions of the runtime differ in what they make of a text that is not UTF-8.

In the language of protobuf the schema is::

    message Payload {
      message Metric {
        optional bytes name = 1;
        optional uint64 alias = 2;
        optional uint64 timestamp = 3;
        optional uint32 datatype = 4;
        optional bool is_historical = 5;
        optional bool is_null = 7;
        oneof value {
          uint32 int_value = 10;
          uint64 long_value = 11;
          float float_value = 12;
          double double_value = 13;
          bool boolean_value = 14;
          bytes string_value = 15;
        }
      }
      optional uint64 timestamp = 1;
      repeated Metric metrics = 2;
      optional uint64 seq = 3;
    }
"""

from __future__ import annotations

from functools import cache
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_KINDS = descriptor_pb2.FieldDescriptorProto

_METRIC = (
    ("name", 1, _KINDS.TYPE_BYTES),
    ("alias", 2, _KINDS.TYPE_UINT64),
    ("timestamp", 3, _KINDS.TYPE_UINT64),
    ("datatype", 4, _KINDS.TYPE_UINT32),
    ("is_historical", 5, _KINDS.TYPE_BOOL),
    ("is_null", 7, _KINDS.TYPE_BOOL),
    ("int_value", 10, _KINDS.TYPE_UINT32),
    ("long_value", 11, _KINDS.TYPE_UINT64),
    ("float_value", 12, _KINDS.TYPE_FLOAT),
    ("double_value", 13, _KINDS.TYPE_DOUBLE),
    ("boolean_value", 14, _KINDS.TYPE_BOOL),
    ("string_value", 15, _KINDS.TYPE_BYTES),
)
#: From this number on a field is one of the forms of the value.
_FIRST_VALUE = 10

_PACKAGE = "quiltstream.sparkplug"


@cache
def payload_class() -> Any:
    """The class of payloads."""
    file = descriptor_pb2.FileDescriptorProto(name="quiltstream/sparkplug.proto", package=_PACKAGE, syntax="proto2")
    payload = file.message_type.add(name="Payload")
    metric = payload.nested_type.add(name="Metric")
    metric.oneof_decl.add(name="value")
    for name, number, kind in _METRIC:
        made = metric.field.add(name=name, number=number, type=kind, label=_KINDS.LABEL_OPTIONAL)
        if number >= _FIRST_VALUE:
            made.oneof_index = 0
    payload.field.add(name="timestamp", number=1, type=_KINDS.TYPE_UINT64, label=_KINDS.LABEL_OPTIONAL)
    payload.field.add(
        name="metrics",
        number=2,
        type=_KINDS.TYPE_MESSAGE,
        label=_KINDS.LABEL_REPEATED,
        type_name=f".{_PACKAGE}.Payload.Metric",
    )
    payload.field.add(name="seq", number=3, type=_KINDS.TYPE_UINT64, label=_KINDS.LABEL_OPTIONAL)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.Payload"))
