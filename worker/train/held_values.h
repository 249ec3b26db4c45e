// Which values a rank can stage again at a shard that has lost its files: its contribution to a
// round, or its part of a version.
//
// A pure state machine over two places, the staging buffer of the exchange with the shard and the
// replica:
//
//   Stage(r)   copies replica -> buffer, and sends       contribution to r: buffer
//   Pull(v)    receives -> buffer                        contribution to r: replica
//              has received everything                   and version v: buffer
//   Adopt      copies buffer -> replica                  version v: buffer
//   training   changes the replica                       version v: buffer
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
  enum class Place { kNowhere, kBuffer, kReplica };

  // Both begin to overwrite the buffer.
  void BeginStage() { *this = HeldValues(); }
  void BeginPull() {
    version_.reset();
    if (contribution_ == Place::kBuffer) contribution_ = Place::kReplica;
  }
  // The contribution to the round is durable at the shard.
  void EndStage(uint32_t round) {
    round_ = round;
    contribution_ = Place::kBuffer;
  }
  void EndPull(uint32_t version) { version_ = version; }
  // The buffer is copied to the replica.
  void Adopt() { contribution_ = Place::kNowhere; }

  // Where the contribution to the round is.
  Place Contribution(uint32_t round) const {
    return round == round_ ? contribution_ : Place::kNowhere;
  }
  Place Version(uint32_t version) const {
    return version == version_ ? Place::kBuffer : Place::kNowhere;
  }

 private:
  uint32_t round_ = 0;
  Place contribution_ = Place::kNowhere;
  // The buffer has this version.
  std::optional<uint32_t> version_;
};

}  // namespace cadre
