// Part of spec/validate.h: the rules of a run spec. A part of the spec has a file.
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
#include "proto/cadre/v1/run.pb.h"
#include "spec/graph.h"
#include "spec/problem.h"

namespace cadre {

// Fields whose 0 stands for 1.
inline uint32_t OrOne(uint32_t value) { return value == 0 ? 1 : value; }

inline const char* PluralOf(uint32_t count) { return count == 1 ? "" : "s"; }

class Validation {
 public:
  // The spec is lent for the life of this object.
  explicit Validation(const v1::RunSpec& spec) : spec_(spec) {}

  std::vector<Problem> Run();

 private:
  // --- for all parts
  // ------------------------------------------------------------------------------
  template <typename... Parts>
  void Add(absl::string_view field, const Parts&... message) {
    problems_.push_back({std::string(field), absl::StrCat(message...)});
  }
  void AtLeastOne(absl::string_view field, uint32_t value);
  void AtMost(absl::string_view field, uint32_t value, uint32_t most);
  // Numbers that are not finite break each of these.
  void Finite(absl::string_view field, float value);
  void NotNegative(absl::string_view field, float value);
  void Positive(absl::string_view field, float value);
  // 0 to 1.
  void Fraction(absl::string_view field, float value);
  // 0 to 1, without 1.
  void BelowOne(absl::string_view field, float value);
  // Text that a file system and a log can hold: UTF-8, no zero bytes.
  void Path(absl::string_view field, const std::string& path);
  void NeededPath(absl::string_view field, const std::string& path);

  // --- validate.cc
  // --------------------------------------------------------------------------------
  void CheckName();
  void CheckModel();
  void CheckTokenClasses();
  void CheckBatch();
  void CheckBatchElements();
  void CheckAveraging();
  void CheckCheckpoint();
  bool GivesStop() const;
  void CheckStop();

  // --- validate_cluster.cc
  // ------------------------------------------------------------------------
  void CheckCluster();
  // What it computes on, and what only some devices can.
  void CheckDevice();
  void CheckMesh();
  void CheckPinnedMesh();
  // model_ranks or space_ranks beside a mesh.
  void CheckMeshAgrees(absl::string_view field, uint32_t ranks, absl::string_view axis);
  // That images have so many rows.
  void CheckRows(const std::string& field, uint32_t space);
  void CheckLayerPins();
  // That the layer can be cut as the pin says.
  void CheckLayerPin(const std::string& field, const v1::LayerPin& pin, const GraphLayer& layer);
  // A mesh is pinned that only splits samples.
  bool IsDataAlone() const;
  // Along `model` or `space`, whichever way the spec says it; 1 where it does not.
  uint32_t RanksAlong(absl::string_view axis) const;

  // --- validate_data.cc
  // ---------------------------------------------------------------------------
  void CheckData();
  void CheckIdx(const v1::IdxFiles& idx);
  void CheckSynthetic(const v1::SyntheticData& synthetic);
  void CheckCentres(int64_t classes);
  void CheckCifar10(const v1::Cifar10& cifar10);
  void CheckJpegs(const std::string& field, const std::string& train, const std::string& test,
                  const v1::Augmentation& augmentation);
  void CheckShardNames(const std::string& field, const std::string& pattern);
  void CheckTokenFiles(const v1::TokenFiles& files);
  void CheckAugmentation(const std::string& field, const v1::Augmentation& augmentation);
  // False where the model takes something else, which is then told.
  bool NeedsImages(const std::string& field);

  // --- validate_training.cc
  // -----------------------------------------------------------------------
  void CheckOptimizer();
  void CheckSchedule();
  void CheckDecay();
  void CheckWarmup();

  const v1::RunSpec& spec_;
  // Of a model without problems.
  std::optional<Graph> graph_;
  std::vector<Problem> problems_;
};

}  // namespace cadre
