"""Functions and op classes of ``theano.gpuarray.dnn``, a module a family; ``numbadnn.theano`` gathers their names."""
