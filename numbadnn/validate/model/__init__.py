"""``numbadnn validate model.onnx``: every node of a model against a float64 reference, alone and with what came before it.

``files`` reads a model into a ``graph``, ``inputs`` feeds it, ``nodes`` knows the operators, ``posed`` says them as calls of
numbadnn's, ``work`` computes one, ``walk`` goes from node to node, ``judge`` says which is wrong, ``alone`` writes that one as a
model of its own, ``against`` judges another runtime, ``command`` is the command.
"""
