import time, numpy as np, cupy, dask, dask.array as da, dask_coop as dc
print(cupy.__version__, cupy.cuda.runtime.runtimeGetVersion())
def ev(f, n=5):
    f(); ts=[]
    for _ in range(n):
        a,b=cupy.cuda.Event(),cupy.cuda.Event(); a.record(); f(); b.record(); b.synchronize(); ts.append(cupy.cuda.get_elapsed_time(a,b))
    return sorted(ts)[n//2]
from dask_coop.chunks import cuda as C
from dask_coop import monoids as m
from dask_coop.bins import find_bins
x=cupy.random.random(2**30,dtype='f4'); f4=np.dtype('f4')
for mon in (m.SUM,m.MIN,m.MOMENTS):
    op=m.bind(mon,f4,f4,"t"); print(mon.name, ev(lambda: C.lift(op,x,(0,))))
    print(C.lift(op,x,(0,)))
op=m.bind(m.SUM,f4,f4,"t")
print("scan", ev(lambda: C.scan(op,x,0,None)))
hop=m.bind(m.COUNTS,np.dtype('i8'),np.dtype('i8'),"h")
for n in (256,2048,16384,57344,65536): 
    b=find_bins(n,(0,1),f4); print("hist",n, ev(lambda: C.histogram(hop,x,b,None),3))
y=x.reshape(32768,32768)
for ax in (0,1): print("sum axis",ax, ev(lambda: C.lift(op,y,(ax,))), "cumsum", ev(lambda: C.scan(op,y,ax,None)))
