// Which values a rank can stage again at a shard that has lost its files: its contribution to a
// round, or its part of a version.
//
// A pure state machine over what the exchange with the shard has (member/shard_values.h): what the
// contribution transfers, in a buffer or where the replica has it, and a buffer with the version.
//
//   Stage(r)   sends the contribution                    contribution to r
//   Pull(v)    receives into the buffer                  contribution to r
//              has received everything                   contribution to r, version v
//   Adopt      copies version v to the replica           version v
//   training   changes the replica                       version v, until the next Pull
//
// Because a rank adopts only after all ranks of its group have pulled, either all of them hold the
// contribution, or all of them hold the version.
//
// Thread-compatible.
#pragma once

#include <cstdint>
#include <optional>

namespace cadre {

class HeldValues {
 public:
  // Begins to overwrite the contribution.
  void BeginStage() { contribution_.reset(); }
  // The contribution to the round is durable at the shard.
  void EndStage(uint32_t round) { contribution_ = round; }
  // Begins to overwrite the version.
  void BeginPull() { version_.reset(); }
  void EndPull(uint32_t version) { version_ = version; }
  void Adopt() { contribution_.reset(); }

  bool HasContribution(uint32_t round) const { return contribution_ == round; }
  bool HasVersion(uint32_t version) const { return version_ == version; }

 private:
  std::optional<uint32_t> contribution_;
  std::optional<uint32_t> version_;
};

}  // namespace cadre
