// Part of model/validate.h: the rules of a run spec. Each part of the spec has a file.
//
// Thread-compatible.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "model/graph.h"
#include "model/problem.h"
#include "proto/cadre/v1/run.pb.h"

namespace cadre {

// The value of a count whose default is 1; 0 means not set.
inline uint32_t OrOne(uint32_t value) { return value == 0 ? 1 : value; }

class Validation : private ProblemCollector {
 public:
  // The spec is borrowed.
  explicit Validation(const v1::RunSpec& spec) : spec_(spec) {}

  std::vector<Problem> Run();

 private:
  // --- for all parts ---
  void AtLeastOne(absl::string_view field, uint32_t value);
  void AtMost(absl::string_view field, uint32_t value, uint32_t max);
  // NaN and infinities violate each of these.
  void Finite(absl::string_view field, float value);
  void NotNegative(absl::string_view field, float value);
  void Positive(absl::string_view field, float value);
  // Requires a value in [0, 1].
  void Fraction(absl::string_view field, float value);
  // Requires a value in [0, 1).
  void BelowOne(absl::string_view field, float value);
  // Requires UTF-8 without zero bytes.
  void Path(absl::string_view field, const std::string& path);
  void NeededPath(absl::string_view field, const std::string& path);
  // Adds a problem if `value` is above 0 but the text of another field, which it requires, is
  // empty.
  void Requires(absl::string_view field, uint64_t value, absl::string_view other,
                const std::string& other_value);

  // --- validate.cc ---
  void CheckName();
  void CheckModel();
  void CheckTokenClasses();
  void CheckBatch();
  void CheckBatchElements();
  void CheckAveraging();
  void CheckCheckpoint();
  bool GivesStop() const;
  void CheckStop();

  // --- validate_cluster.cc ---
  void CheckCluster();
  // The device, and features that require certain devices.
  void CheckDevice();
  void CheckMesh();
  void CheckPinnedMesh();
  // Checks that model_ranks or space_ranks agrees with the mesh.
  void CheckMeshAgrees(absl::string_view field, uint32_t ranks, absl::string_view axis);
  // Checks that images have at least `space` rows.
  void CheckRows(const std::string& field, uint32_t space);
  void CheckLayerPins();
  // Checks that the layer has the index of the pin.
  void CheckLayerPin(const std::string& field, const v1::LayerPin& pin, const GraphLayer& layer);
  // Whether the mesh is pinned and splits only samples.
  bool IsDataAlone() const;
  // Ranks along `model` or `space`, from the mesh or from the counts; 1 by default.
  uint32_t RanksAlong(absl::string_view axis) const;

  // --- validate_data.cc ---
  void CheckData();
  void CheckIdx(const v1::IdxFiles& idx);
  void CheckSynthetic(const v1::SyntheticData& synthetic);
  void CheckCenters(int64_t classes);
  void CheckCifar10(const v1::Cifar10& cifar10);
  void CheckJpegs(const std::string& field, const std::string& train, const std::string& test,
                  const v1::Augmentation& augmentation);
  void CheckShardNames(const std::string& field, const std::string& pattern);
  void CheckTokenFiles(const v1::TokenFiles& files);
  void CheckAugmentation(const std::string& field, const v1::Augmentation& augmentation);
  // Adds a problem and returns false if the model requires tokens.
  bool NeedsImages(const std::string& field);

  // --- validate_training.cc ---
  void CheckOptimizer();
  void CheckSchedule();
  void CheckDecay();
  void CheckWarmup();

  const v1::RunSpec& spec_;
  // Set if the model has no problems.
  std::optional<Graph> graph_;
};

}  // namespace cadre
