// CopyBox and AddBox (tensor/box.h) for views of fp32 or bf16 elements on the host.
//
// Thread-safe (pure functions).
#pragma once

#include "tensor/box.h"
#include "tensor/values.h"

namespace cadre {

// Require what the functions of box.h require, and that both views have one type. AddBox rounds
// each sum of bf16.
void CopyBox(ConstValues from, const Box& from_box, Values to, const Box& to_box,
             const Box& region);
void AddBox(ConstValues from, const Box& from_box, Values to, const Box& to_box, const Box& region);

}  // namespace cadre
