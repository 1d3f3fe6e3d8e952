import onnx, numpy as np, time
from onnx.reference import ReferenceEvaluator
p='/opt/fp/cache/models/dinov2-small-b2a084b1845c/dinov2-small/vit_s_focus.onnx'
m=onnx.load(p)
print(m.opset_import, [i.name for i in m.graph.input],[o.name for o in m.graph.output])
ln=[n for n in m.graph.node if n.name.startswith('/backbone/layernorm')]
for n in ln: print(n.op_type,n.name,n.output)
rs=[n for n in m.graph.node if 'Resize' in n.op_type]
for n in rs: print(n.op_type,n.name,n.input,[(a.name,a.s,a.f,a.i) for a in n.attribute])
out=ln[-1].output[0]
m.graph.output.append(onnx.helper.make_tensor_value_info(out,onnx.TensorProto.FLOAT,None))
ev=ReferenceEvaluator(m)
x=np.random.default_rng(0).standard_normal((1,3,224,224)).astype(np.float32)
t=time.time(); r=ev.run([out],{m.graph.input[0].name:x})[0]; print(r.shape,time.time()-t)
import forwardpass
from forwardpass.contracts import EncoderImage
with forwardpass.load('dinov2-small',dtype='float32') as model:
    o=model.engine.encode([EncoderImage(x[0].transpose(1,2,0))],lambda h:[h.values.copy()])[0]
d=np.abs(o-r[0]); print(d.max()/np.abs(r).max(), (o*r[0]).sum()/np.linalg.norm(o)/np.linalg.norm(r))
