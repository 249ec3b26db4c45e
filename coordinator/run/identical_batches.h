// Finds programs that train on the same samples, as those do that were started with the same seed
// and do not use the position that the group gives them: their groups together learn no more than
// one of them. The batches of networks that Cadre trains differ by construction.
//
// Two signs: the contributions of a round are equal, although they have moved the model; or the
// mean losses of two groups are equal, bit for bit, in several successive rounds. By chance the
// latter is likely only for rounded losses in a single round.
//
// Thread-compatible.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "proto/cadre/v1/records.pb.h"

namespace cadre {

class IdenticalBatches {
 public:
  // Rounds after which equal losses count.
  static constexpr int kEqualRounds = 4;

  // A round is committed; `batch`: samples of a step of a group. Returns two or more groups that
  // train on identical batches, or nothing. `is_program`: of a participant.
  std::vector<uint32_t> OnCommit(const v1::CommitRecord& commit, uint64_t batch,
                                 const std::function<bool(uint32_t group)>& is_program);

 private:
  // The successive rounds in which two groups had equal losses, whether these have changed, and the
  // newest one.
  struct Equal {
    int rounds = 0;
    bool changed = false;
    float loss = 0;
  };
  std::map<std::pair<uint32_t, uint32_t>, Equal> equal_;
};

// The text of the warning.
std::string IdenticalBatchesText(const std::vector<uint32_t>& groups);
// Whether the text is one of these.
bool IsOfIdenticalBatches(const std::string& warning);

}  // namespace cadre
