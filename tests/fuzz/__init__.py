"""Random cases of every public function, held to NumPy and to exact arithmetic, for any time.

    PYTHONPATH=tests python -m fuzz              what `make fuzz` does
    PYTHONPATH=tests python -m fuzz SEED INDEX   one case again

A case is plain data that is drawn from two numbers, its seed and its index::

    families.FAMILIES --draw--> Case --judge--> Failure --shrink--> the least such case, a line

A family is a function that draws a case, one that says what NumPy makes of it, and a row in the
table of families.py. Hypothesis, which the property tests use, shrinks as well, but it runs for a
number of examples and not for a time, and takes longer than NumPy's generators to draw an array,
during which a GPU is without work.
"""
