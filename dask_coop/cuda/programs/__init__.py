"""Generated translation units: one kernel each, an instance of a template in kernels/.

All of this is text made of dtypes and names, so it needs no GPU. Tuning is data here.
"""
