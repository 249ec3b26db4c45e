// The run of a small network on images, for tests of replicas and of their steps on devices.
#pragma once

#include <string>

#include "proto/cadre/v1/run.pb.h"
#include "tests/base/expect.h"

namespace cadre {

inline v1::RunSpec SpecWith(const std::string& more) {
  return Parse<v1::RunSpec>(R"(
    name: "small"
    model {
      input { channels: 3 height: 6 width: 6 }
      layer { name: "conv" convolution { out_channels: 5 kernel: 3 padding: 1 } }
      layer { name: "norm" batch_norm { momentum: 0.25 } }
      layer { name: "relu1" relu {} }
      layer { name: "pool" max_pool { kernel: 2 } }
      layer { name: "fc1" fully_connected { out_features: 16 } }
      layer { name: "relu2" relu {} }
      layer { name: "drop" dropout { rate: 0.25 } }
      layer { name: "fc2" fully_connected { out_features: 7 } }
      layer { name: "loss" softmax_cross_entropy {} }
    }
    batch_per_group: 8
    seed: 3
  )" + more);
}

inline constexpr char kSgd[] = "optimizer { sgd { momentum: 0.9 weight_decay: 1e-3 } }";

}  // namespace cadre
