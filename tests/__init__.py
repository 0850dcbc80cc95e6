"""The tests, in rooms: a folder for each package of numbadnn and each framework; ``project`` for what lies around the package.

``support`` holds what several tests share and the programs that they start; pytest puts it on ``sys.path``.
"""
