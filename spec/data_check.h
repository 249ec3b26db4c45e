// Whether the data files that a run spec names are there, whole, and fit one another and the model.
// For programs on a machine that has them: it reads IDX files to the end, and looks at the sizes
// (tar shards, tokens, CIFAR-10) or the classes (image folders) of others.
//
// Thread-safe (pure function over files).
#pragma once

#include <vector>

#include "proto/cadre/v1/run.pb.h"
#include "spec/problem.h"

namespace cadre {

// Everything that is wrong, by field ("data.idx.train_images", ...), each message naming the file.
// Empty for synthetic data. What FindProblems says about the model's shapes is not said again:
// where they cannot be worked out, files are not held against them.
std::vector<Problem> FindDataProblems(const v1::RunSpec& spec);

}  // namespace cadre
