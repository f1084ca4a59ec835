"""The generated translation units: one kernel each, an instance of a template in kernels/.

Everything here is text made of dtypes and names, so it needs no GPU. Tuning stands here as data.
"""
