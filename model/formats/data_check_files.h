// Part of model/formats/data_check.h: sources other than IDX files.
//
// Thread-safe (pure functions over files).
#pragma once

#include <string>
#include <vector>

#include "model/graph.h"
#include "model/problem.h"
#include "proto/cadre/v1/run.pb.h"

namespace cadre {

// Append problems. `graph`: null if the model has problems; files are then not compared with it.
void CheckCifar10Files(const v1::Cifar10& data, std::vector<Problem>* problems);
void CheckImageFolders(const v1::ImageFolder& data, const Graph* graph,
                       std::vector<Problem>* problems);
void CheckTarShards(const v1::TarShards& data, std::vector<Problem>* problems);
void CheckTokenFiles(const v1::TokenFiles& data, const Graph* graph,
                     std::vector<Problem>* problems);

}  // namespace cadre
