// A model of fully connected layers fc1, fc2, ... on square images, for tests with worked numbers.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "model/graph.h"
#include "model/parameter_index.h"
#include "tests/model/testing.h"

namespace cadre::testing {

struct SmallModel {
  SmallModel(int side, const std::vector<int>& widths, int batch) {
    std::string text =
        absl::StrCat("batch_per_group: ", batch, " optimizer { sgd { momentum: 0.9 } } model { ",
                     "input { channels: 1 height: ", side, " width: ", side, " } ");
    for (size_t l = 0; l < widths.size(); ++l) {
      absl::StrAppend(&text, "layer { name: 'fc", l + 1,
                      "' fully_connected { out_features: ", widths[l], " } } ");
    }
    spec = SpecOf(absl::StrCat(text, "layer { name: 'loss' softmax_cross_entropy {} } }"));
    graph = *Graph::FromModel(spec.model());
    index = ParameterIndex::FromGraph(graph);
  }

  v1::RunSpec spec;
  Graph graph;
  ParameterIndex index;
};

}  // namespace cadre::testing
