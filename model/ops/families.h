// The operations, a family in each file. Internal to model/ops: Describe finds the one of a kind.
#pragma once

#include <span>

namespace cadre {

struct Operation;  // model/ops/operation.h

std::span<const Operation> ActivationOperations();
std::span<const Operation> Dense();
std::span<const Operation> Elementwise();
std::span<const Operation> Losses();
std::span<const Operation> Norms();
std::span<const Operation> Sequences();
std::span<const Operation> Shapes();
std::span<const Operation> Tokens();
std::span<const Operation> Windows();

}  // namespace cadre
