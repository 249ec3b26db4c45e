// Which values a rank can stage again at a shard that has lost its files: its contribution to a
// round, or its part of a version.
//
// A pure state machine over three places, the staging buffer of the exchange with the shard, the
// replica and, in a run with an outer optimizer, a copy of the version that was adopted last:
//
//   Stage(r)   copies replica -> buffer, and sends       contribution to r: buffer
//   Pull(v)    receives -> buffer                        contribution to r: replica
//              has received everything                   and version v: buffer
//   Adopt      copies buffer -> replica [and copy]       version v: buffer, or copy
//   training   changes the replica                       version v: buffer, or copy
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
  enum class Place { kNowhere, kBuffer, kReplica, kCopy };

  // `copies`: the version that is adopted is copied.
  explicit HeldValues(bool copies = false) : copies_(copies) {}

  // Both begin to overwrite the buffer.
  void BeginStage() {
    contribution_ = Place::kNowhere;
    version_.reset();
  }
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
  void Adopt() {
    contribution_ = Place::kNowhere;
    if (copies_) copy_ = version_;
  }

  bool copies() const { return copies_; }
  // Where the contribution to the round is.
  Place Contribution(uint32_t round) const {
    return round == round_ ? contribution_ : Place::kNowhere;
  }
  Place Version(uint32_t version) const {
    if (version == version_) return Place::kBuffer;
    return version == copy_ ? Place::kCopy : Place::kNowhere;
  }

 private:
  bool copies_;
  uint32_t round_ = 0;
  Place contribution_ = Place::kNowhere;
  // The buffer has this version, and the copy that one.
  std::optional<uint32_t> version_;
  std::optional<uint32_t> copy_;
};

}  // namespace cadre
