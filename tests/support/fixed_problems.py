"""Problems that some implementation once planned wrongly, each with what was wrong: ``test_launches`` plans them for ever."""

FIXED = (
    # more filters than an H200 has blocks at once, then than a slice of 16 multiprocessors: a grid of no block
    "conv2d x=bfloat16:1x64x8x8:nhwc w=bfloat16:17000x64x3x3:nhwc pad=1,1,1,1",
    "conv2d x=bfloat16:1x64x8x8:nhwc w=bfloat16:1100x64x3x3:nhwc pad=1,1,1,1",
    # more groups than blocks along an axis of the grid: no estimate of time at all
    "conv2d x=float32:1x65600x4x4 w=float32:65600x1x3x3 groups=65600 pad=1,1,1,1",
    # a table of the filters' gradient beyond a limit of 1 MiB
    "conv2d_grad_wrt_weights x=float32:8x2048x32x32 w=float32:2048x1x3x3 groups=2048 pad=1,1,1,1",
    # numbers of 2**31 and more that no element depends on, in 32 bits: a stride of one output, a dilation of one tap
    "conv2d x=float16:64x16x8x512 w=float16:32x16x3x4 pad=1,2,1,1 stride=1,8589934592",
    "conv2d x=bfloat16:3x4x5x5 w=bfloat16:6x4x5x5 stride=8589934592,1",
    "conv2d_grad_wrt_inputs x=bfloat16:32x2x2x4 w=bfloat16:16x2x2x4 pad=1,1,2,2 stride=2147483648,1 dilation=1,2 flip=0",
    "conv2d_grad_wrt_weights x=bfloat16:8x32x64x2:nhwc w=bfloat16:1x32x1x11:nhwc pad=0,5,5,5 stride=7,1 dilation=2147483648,1",
    "causal_conv1d x=float32:1024x32x1x1 w=float32:256x1x1x1x1x11 pad=0,0,10,0 stride=1,8589934592 groups=32",
    "causal_conv1d x=float16:1x3x1x552 w=float16:3x1x1x1 dilation=1,8589934592 flip=0 groups=3",
    # so many filters, so many images
    "conv2d x=bfloat16:1x2x1x4 w=bfloat16:2147483647x2x1x2 pad=0,0,1,0",
    "conv2d x=float16:2147483656x1x1x1 w=float16:1x1x1x1",
    # rows kept in more shared memory than a block has on GPUs of 99 KB
    "softmax_grad dy=bfloat16:2x20008 y=bfloat16:2x20008",
    # more rows than a grid has blocks, a block each, in a configuration to be timed
    "softmax x=float32:2147483656x16 algo=log mode=instance",
    "softmax_grad dy=float16:32x4x65536x3x512 y=float16:32x4x65536x3x512",
    # a workspace beyond a limit of 1 MiB
    "batch_normalization_train x=float64:32x2x128x512 mode=per-activation",
    "spatialtf_grid_grad dgrid=bfloat16:1x4x2147483647x2",
    # rows of 2**31 and more
    "spatialtf_grid theta=bfloat16:2x2x3 grid=bfloat16:2x2147483656x8x2",
    "pool x=bfloat16:2x1x2147483656x8 window=5x2 stride=3x2 pad=0x1 mode=sum",
    # more than 65,535 tiles of sequences, inputs of 2**31 numbers
    "rnn_forward w=float32:2496 x=float32:3x16777216x5 hx=float32:2x16777216x32 mode=rnn_tanh hidden=32 layers=1 "
    "direction=bidirectional",
    "rnn_backward w=float16:6442450989 x=float16:3x1x2147483656 hx=float16:2x1x1 dy=float16:3x1x1 dhy=float16:2x1x1 "
    "mode=gru hidden=1 layers=2",
)
