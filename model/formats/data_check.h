// Verifies that the data files of a run spec exist, are complete, and match one another and the
// model. Only programs on hosts with the files can use it. Reads IDX files completely; of other
// files only the sizes and the beginning (tar shards, tokens, CIFAR-10) or the class names (image
// folders).
//
// Thread-safe (pure function over files).
#pragma once

#include <vector>

#include "model/problem.h"
#include "proto/cadre/v1/run.pb.h"

namespace cadre {

// All problems, by field ("data.idx.train_images", ...), with the file in each message. Empty for
// synthetic data. Problems of the model itself are not repeated: if it has any, files are not
// compared with it.
std::vector<Problem> FindDataProblems(const v1::RunSpec& spec);

}  // namespace cadre
