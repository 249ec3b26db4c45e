// Bounds on what a group may claim of its work: what the coordinator knows of the run limits the
// step and the samples of a contribution, and the labels of an evaluation.
//
// Pure and thread-safe.
#pragma once

#include <string>

#include "proto/cadre/v1/membership.pb.h"
#include "proto/cadre/v1/records.pb.h"

namespace cadre {

// Why the contribution is not possible in the run, with the number that it claims and the bound;
// empty if it is. Older contributions, whose bounds are not known any more, are only checked for
// numbers that are never possible.
std::string WhyImpossible(const v1::RunRecord& run, const v1::Contributed& contributed);
// The same for the result of a part of an evaluation. The number of correct answers cannot be
// checked up to this bound: only the group has evaluated these samples.
std::string WhyImpossible(const v1::RunRecord& run, const v1::Evaluated& evaluated);

}  // namespace cadre
