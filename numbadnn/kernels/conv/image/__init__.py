"""Convolutions from images of few channels (``first_layer.py``) and to such images (``to_image.py``, ``to_image_halves.py``)."""
