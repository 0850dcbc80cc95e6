"""The C functions of cuDNN 9 that the binding calls: name -> (result, arguments) as ctypes types.

Handles, descriptors and pointers are ``void *``, enums and ``cudnnStatus_t`` are ``int``. A test compares every line
with the headers of the installed wheel (number of arguments, class and width of each).
"""

from __future__ import annotations

from ctypes import c_char_p, c_float, c_int, c_int64, c_size_t, c_uint, c_ulonglong, c_void_p
from typing import Any

PROTOTYPES: dict[str, tuple[Any, list[Any]]] = {
    "cudnnGetVersion": (c_size_t, []),
    "cudnnGetErrorString": (c_char_p, [c_int]),
    "cudnnGetLastErrorString": (None, [c_char_p, c_size_t]),
    "cudnnCreate": (c_int, [c_void_p]),
    "cudnnSetStream": (c_int, [c_void_p, c_void_p]),
    "cudnnBackendCreateDescriptor": (c_int, [c_int, c_void_p]),
    "cudnnBackendDestroyDescriptor": (c_int, [c_void_p]),
    "cudnnBackendFinalize": (c_int, [c_void_p]),
    "cudnnBackendSetAttribute": (c_int, [c_void_p, c_int, c_int, c_int64, c_void_p]),
    "cudnnBackendGetAttribute": (c_int, [c_void_p, c_int, c_int, c_int64, c_void_p, c_void_p]),
    "cudnnBackendExecute": (c_int, [c_void_p, c_void_p, c_void_p]),
    "cudnnCreateTensorDescriptor": (c_int, [c_void_p]),
    "cudnnDestroyTensorDescriptor": (c_int, [c_void_p]),
    "cudnnSetTensor4dDescriptorEx": (c_int, [c_void_p, *[c_int] * 9]),
    "cudnnSoftmaxForward": (c_int, [c_void_p, c_int, c_int, *[c_void_p] * 6]),
    "cudnnSoftmaxBackward": (c_int, [c_void_p, c_int, c_int, *[c_void_p] * 8]),
    "cudnnSetTensorNdDescriptor": (c_int, [c_void_p, c_int, c_int, c_void_p, c_void_p]),
    "cudnnCreateDropoutDescriptor": (c_int, [c_void_p]),
    "cudnnDestroyDropoutDescriptor": (c_int, [c_void_p]),
    "cudnnSetDropoutDescriptor": (c_int, [c_void_p, c_void_p, c_float, c_void_p, c_size_t, c_ulonglong]),
    "cudnnCreateRNNDescriptor": (c_int, [c_void_p]),
    "cudnnDestroyRNNDescriptor": (c_int, [c_void_p]),
    "cudnnSetRNNDescriptor_v8": (c_int, [c_void_p, *[c_int] * 8, *[c_int] * 4, c_void_p, c_uint]),
    "cudnnCreateRNNDataDescriptor": (c_int, [c_void_p]),
    "cudnnDestroyRNNDataDescriptor": (c_int, [c_void_p]),
    "cudnnSetRNNDataDescriptor": (c_int, [c_void_p, *[c_int] * 5, c_void_p, c_void_p]),
    "cudnnGetRNNTempSpaceSizes": (c_int, [c_void_p, c_void_p, c_int, c_void_p, c_void_p, c_void_p]),
    "cudnnGetRNNWeightSpaceSize": (c_int, [c_void_p] * 3),
    "cudnnGetRNNWeightParams": (
        c_int,
        [c_void_p, c_void_p, c_int, c_size_t, c_void_p, c_int, c_void_p, c_void_p, c_void_p, c_void_p],
    ),
    "cudnnRNNForward": (
        c_int,
        [c_void_p, c_void_p, c_int, *[c_void_p] * 11, c_size_t, c_void_p, c_size_t, c_void_p, c_size_t, c_void_p],
    ),
    "cudnnRNNBackwardData_v8": (
        c_int,
        [*[c_void_p] * 16, c_size_t, c_void_p, c_size_t, c_void_p, c_size_t, c_void_p],
    ),
    "cudnnRNNBackwardWeights_v8": (
        c_int,
        [c_void_p, c_void_p, c_int, *[c_void_p] * 7, c_size_t, c_void_p, c_size_t, c_void_p, c_size_t, c_void_p],
    ),
    "cudnnCreateFilterDescriptor": (c_int, [c_void_p]),
    "cudnnDestroyFilterDescriptor": (c_int, [c_void_p]),
    "cudnnSetFilterNdDescriptor": (c_int, [c_void_p, c_int, c_int, c_int, c_void_p]),
    "cudnnCreateConvolutionDescriptor": (c_int, [c_void_p]),
    "cudnnDestroyConvolutionDescriptor": (c_int, [c_void_p]),
    "cudnnSetConvolutionNdDescriptor": (c_int, [c_void_p, c_int, *[c_void_p] * 3, c_int, c_int]),
    "cudnnSetConvolutionGroupCount": (c_int, [c_void_p, c_int]),
    "cudnnSetConvolutionMathType": (c_int, [c_void_p, c_int]),
    "cudnnGetConvolutionForwardWorkspaceSize": (c_int, [*[c_void_p] * 5, c_int, c_void_p]),
    "cudnnGetConvolutionForwardAlgorithm_v7": (c_int, [*[c_void_p] * 5, c_int, c_void_p, c_void_p]),
    "cudnnFindConvolutionForwardAlgorithm": (c_int, [*[c_void_p] * 5, c_int, c_void_p, c_void_p]),
    "cudnnConvolutionForward": (c_int, [*[c_void_p] * 7, c_int, c_void_p, c_size_t, *[c_void_p] * 3]),
    "cudnnGetConvolutionBackwardDataWorkspaceSize": (c_int, [*[c_void_p] * 5, c_int, c_void_p]),
    "cudnnGetConvolutionBackwardDataAlgorithm_v7": (c_int, [*[c_void_p] * 5, c_int, c_void_p, c_void_p]),
    "cudnnFindConvolutionBackwardDataAlgorithm": (c_int, [*[c_void_p] * 5, c_int, c_void_p, c_void_p]),
    "cudnnConvolutionBackwardData": (c_int, [*[c_void_p] * 7, c_int, c_void_p, c_size_t, *[c_void_p] * 3]),
    "cudnnGetConvolutionBackwardFilterWorkspaceSize": (c_int, [*[c_void_p] * 5, c_int, c_void_p]),
    "cudnnGetConvolutionBackwardFilterAlgorithm_v7": (c_int, [*[c_void_p] * 5, c_int, c_void_p, c_void_p]),
    "cudnnFindConvolutionBackwardFilterAlgorithm": (c_int, [*[c_void_p] * 5, c_int, c_void_p, c_void_p]),
    "cudnnConvolutionBackwardFilter": (c_int, [*[c_void_p] * 7, c_int, c_void_p, c_size_t, *[c_void_p] * 3]),
}
