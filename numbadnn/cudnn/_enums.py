"""The numbers of cuDNN 9's headers that the binding uses, one ``IntEnum`` for each C enum.

A member is the C name without the prefix that ``PREFIX`` gives for its class: ``Attr.TENSOR_DATA_TYPE`` is
``CUDNN_ATTR_TENSOR_DATA_TYPE``. A test compares every member with the headers of the installed wheel.
"""

from __future__ import annotations

from enum import IntEnum


class DataType(IntEnum):
    FLOAT = 0
    DOUBLE = 1
    HALF = 2
    BFLOAT16 = 9


class ConvolutionMode(IntEnum):
    CONVOLUTION = 0
    CROSS_CORRELATION = 1


class TensorFormat(IntEnum):
    NCHW = 0
    NHWC = 1


class FwdAlgo(IntEnum):
    IMPLICIT_GEMM = 0
    IMPLICIT_PRECOMP_GEMM = 1
    GEMM = 2
    DIRECT = 3
    FFT = 4
    FFT_TILING = 5
    WINOGRAD = 6
    WINOGRAD_NONFUSED = 7


class BwdDataAlgo(IntEnum):
    ALGO_0 = 0
    ALGO_1 = 1
    ALGO_FFT = 2
    ALGO_FFT_TILING = 3
    ALGO_WINOGRAD = 4
    ALGO_WINOGRAD_NONFUSED = 5


class BwdFilterAlgo(IntEnum):
    ALGO_0 = 0
    ALGO_1 = 1
    ALGO_FFT = 2
    ALGO_3 = 3
    ALGO_WINOGRAD = 4
    ALGO_WINOGRAD_NONFUSED = 5
    ALGO_FFT_TILING = 6


class HeurMode(IntEnum):
    INSTANT = 0
    B = 1
    FALLBACK = 2
    A = 3


class DescriptorType(IntEnum):
    CONVOLUTION = 1
    ENGINE = 2
    ENGINECFG = 3
    ENGINEHEUR = 4
    EXECUTION_PLAN = 5
    KNOB_CHOICE = 7
    OPERATION_CONVOLUTION_FORWARD = 10
    OPERATION_CONVOLUTION_BACKWARD_FILTER = 11
    OPERATION_CONVOLUTION_BACKWARD_DATA = 12
    OPERATIONGRAPH = 15
    VARIANT_PACK = 16
    TENSOR = 17


class Type(IntEnum):
    """What an attribute's elements are."""

    HANDLE = 0
    DATA_TYPE = 1
    BOOLEAN = 2
    INT64 = 3
    FLOAT = 4
    DOUBLE = 5
    VOID_PTR = 6
    CONVOLUTION_MODE = 7
    HEUR_MODE = 8
    KNOB_TYPE = 9
    NUMERICAL_NOTE = 11
    BACKEND_DESCRIPTOR = 15
    BEHAVIOR_NOTE = 19


class Attr(IntEnum):
    CONVOLUTION_COMP_TYPE = 100
    CONVOLUTION_CONV_MODE = 101
    CONVOLUTION_DILATIONS = 102
    CONVOLUTION_FILTER_STRIDES = 103
    CONVOLUTION_POST_PADDINGS = 104
    CONVOLUTION_PRE_PADDINGS = 105
    CONVOLUTION_SPATIAL_DIMS = 106
    ENGINEHEUR_MODE = 200
    ENGINEHEUR_OPERATION_GRAPH = 201
    ENGINEHEUR_RESULTS = 202
    ENGINECFG_ENGINE = 300
    ENGINECFG_KNOB_CHOICES = 302
    EXECUTION_PLAN_HANDLE = 400
    EXECUTION_PLAN_ENGINE_CONFIG = 401
    EXECUTION_PLAN_WORKSPACE_SIZE = 402
    KNOB_CHOICE_KNOB_TYPE = 600
    KNOB_CHOICE_KNOB_VALUE = 601
    OPERATION_CONVOLUTION_FORWARD_ALPHA = 700
    OPERATION_CONVOLUTION_FORWARD_BETA = 701
    OPERATION_CONVOLUTION_FORWARD_CONV_DESC = 702
    OPERATION_CONVOLUTION_FORWARD_W = 703
    OPERATION_CONVOLUTION_FORWARD_X = 704
    OPERATION_CONVOLUTION_FORWARD_Y = 705
    OPERATION_CONVOLUTION_BWD_DATA_ALPHA = 706
    OPERATION_CONVOLUTION_BWD_DATA_BETA = 707
    OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC = 708
    OPERATION_CONVOLUTION_BWD_DATA_W = 709
    OPERATION_CONVOLUTION_BWD_DATA_DX = 710
    OPERATION_CONVOLUTION_BWD_DATA_DY = 711
    OPERATION_CONVOLUTION_BWD_FILTER_ALPHA = 712
    OPERATION_CONVOLUTION_BWD_FILTER_BETA = 713
    OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC = 714
    OPERATION_CONVOLUTION_BWD_FILTER_DW = 715
    OPERATION_CONVOLUTION_BWD_FILTER_X = 716
    OPERATION_CONVOLUTION_BWD_FILTER_DY = 717
    OPERATIONGRAPH_HANDLE = 800
    OPERATIONGRAPH_OPS = 801
    TENSOR_BYTE_ALIGNMENT = 900
    TENSOR_DATA_TYPE = 901
    TENSOR_DIMENSIONS = 902
    TENSOR_STRIDES = 903
    TENSOR_UNIQUE_ID = 906
    VARIANT_PACK_UNIQUE_IDS = 1000
    VARIANT_PACK_DATA_POINTERS = 1001
    VARIANT_PACK_WORKSPACE = 1003
    ENGINE_OPERATION_GRAPH = 1300
    ENGINE_GLOBAL_INDEX = 1301
    ENGINE_NUMERICAL_NOTE = 1303
    ENGINE_BEHAVIOR_NOTE = 1305


class NumericalNote(IntEnum):
    TENSOR_CORE = 0
    DOWN_CONVERT_INPUTS = 1
    REDUCED_PRECISION_REDUCTION = 2
    FFT = 3
    NONDETERMINISTIC = 4
    WINOGRAD = 5
    WINOGRAD_TILE_4x4 = 6
    WINOGRAD_TILE_6x6 = 7
    WINOGRAD_TILE_13x13 = 8
    STRICT_NAN_PROP = 9


class BehaviorNote(IntEnum):
    RUNTIME_COMPILATION = 0
    REQUIRES_FILTER_INT8x32_REORDER = 1
    REQUIRES_BIAS_INT8x32_REORDER = 2
    SUPPORTS_CUDA_GRAPH_NATIVE_API = 3
    CUBLASLT_DEPENDENCY = 4


class SoftmaxAlgorithm(IntEnum):
    FAST = 0
    ACCURATE = 1
    LOG = 2


class SoftmaxMode(IntEnum):
    INSTANCE = 0
    CHANNEL = 1


class RNNMode(IntEnum):
    RNN_RELU = 0
    RNN_TANH = 1
    LSTM = 2
    GRU = 3


class RNNAlgo(IntEnum):
    STANDARD = 0
    PERSIST_STATIC = 1
    PERSIST_STATIC_SMALL_H = 3


class RNNBiasMode(IntEnum):
    DOUBLE_BIAS = 2


class DirectionMode(IntEnum):
    UNIDIRECTIONAL = 0
    BIDIRECTIONAL = 1


class RNNInputMode(IntEnum):
    LINEAR = 0
    SKIP = 1


class RNNDataLayout(IntEnum):
    SEQ_MAJOR_UNPACKED = 0


class ForwardMode(IntEnum):
    INFERENCE = 0
    TRAINING = 1


class WgradMode(IntEnum):
    ADD = 0


class MathType(IntEnum):
    DEFAULT = 0
    TENSOR_OP = 1
    FMA = 3


class PoolingMode(IntEnum):
    MAX = 0
    AVERAGE_COUNT_INCLUDE_PADDING = 1
    AVERAGE_COUNT_EXCLUDE_PADDING = 2
    MAX_DETERMINISTIC = 3


class NanPropagation(IntEnum):
    NOT_PROPAGATE_NAN = 0
    PROPAGATE_NAN = 1


class BatchNormMode(IntEnum):
    PER_ACTIVATION = 0
    SPATIAL = 1


class SamplerType(IntEnum):
    BILINEAR = 0


#: class -> (what the C names start with, what they end with)
PREFIX: dict[type[IntEnum], tuple[str, str]] = {
    DataType: ("CUDNN_DATA_", ""),
    ConvolutionMode: ("CUDNN_", ""),
    TensorFormat: ("CUDNN_TENSOR_", ""),
    FwdAlgo: ("CUDNN_CONVOLUTION_FWD_ALGO_", ""),
    BwdDataAlgo: ("CUDNN_CONVOLUTION_BWD_DATA_", ""),
    BwdFilterAlgo: ("CUDNN_CONVOLUTION_BWD_FILTER_", ""),
    HeurMode: ("CUDNN_HEUR_MODE_", ""),
    DescriptorType: ("CUDNN_BACKEND_", "_DESCRIPTOR"),
    Type: ("CUDNN_TYPE_", ""),
    Attr: ("CUDNN_ATTR_", ""),
    NumericalNote: ("CUDNN_NUMERICAL_NOTE_", ""),
    BehaviorNote: ("CUDNN_BEHAVIOR_NOTE_", ""),
    SoftmaxAlgorithm: ("CUDNN_SOFTMAX_", ""),
    SoftmaxMode: ("CUDNN_SOFTMAX_MODE_", ""),
    PoolingMode: ("CUDNN_POOLING_", ""),
    NanPropagation: ("CUDNN_", ""),
    RNNMode: ("CUDNN_", ""),
    RNNAlgo: ("CUDNN_RNN_ALGO_", ""),
    RNNBiasMode: ("CUDNN_RNN_", ""),
    DirectionMode: ("CUDNN_", ""),
    RNNInputMode: ("CUDNN_", "_INPUT"),
    RNNDataLayout: ("CUDNN_RNN_DATA_LAYOUT_", ""),
    ForwardMode: ("CUDNN_FWD_MODE_", ""),
    WgradMode: ("CUDNN_WGRAD_MODE_", ""),
    MathType: ("CUDNN_", "_MATH"),
    BatchNormMode: ("CUDNN_BATCHNORM_", ""),
    SamplerType: ("CUDNN_SAMPLER_", ""),
}

#: dtype name -> the data type cuDNN stores, and the one it computes and scales (alpha, beta) in
DATA_TYPE = {
    "float16": DataType.HALF,
    "bfloat16": DataType.BFLOAT16,
    "float32": DataType.FLOAT,
    "float64": DataType.DOUBLE,
}


def note_name(kind: type[IntEnum], value: int) -> str:
    """The name of a note; a number from a newer cuDNN stays a number."""
    try:
        return kind(value).name
    except ValueError:
        return str(value)
