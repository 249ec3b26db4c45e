// The cost of an exchange between ranks as the papers count it: the words (fp32 elements) that one
// rank sends, the messages that depend on one another, and the resulting seconds.
//
// All-gather and reduce-scatter of n words over p ranks take ceil(log2 p) messages and (p - 1) / p
// n words (Bruck; recursive halving); an all-reduce is both: 2 ceil(log2 p) messages and 2 (p - 1)
// / p n words (Thakur, Rabenseifner, Gropp 2005). If p does not divide n, the fraction is a mean
// over ranks. plan/cost/collective_cost.h has the costs of Cadre's own collectives.
//
// Thread-safe (values and pure functions).
#pragma once

#include <bit>
#include <cstdint>

namespace cadre {

inline constexpr int64_t kBytesPerWord = 4;

// alpha: seconds per message; beta: seconds per word.
struct WordLink {
  double alpha = 0;
  double beta = 0;

  bool known() const { return alpha > 0 || beta > 0; }
  static WordLink OfBandwidth(double alpha, double bytes_per_second) {
    return {alpha, kBytesPerWord / bytes_per_second};
  }
};

// The cost of one or several exchanges.
struct CommunicationCost {
  double words = 0;
  double messages = 0;

  double Seconds(const WordLink& link) const { return link.alpha * messages + link.beta * words; }
  CommunicationCost& operator+=(const CommunicationCost& other) {
    words += other.words;
    messages += other.messages;
    return *this;
  }
  friend CommunicationCost operator+(CommunicationCost one, const CommunicationCost& other) {
    return one += other;
  }
};

// ceil(log2 ranks). Requires: ranks >= 1.
inline double Log2Up(int64_t ranks) { return std::bit_width(static_cast<uint64_t>(ranks - 1)); }

// (ranks - 1) / ranks of `words`.
inline double AllButOwn(double words, int64_t ranks) { return words * (ranks - 1) / ranks; }

// `words`: the total, of which each rank has an equal part at the start. Requires: ranks >= 1.
inline CommunicationCost AllGather(double words, int64_t ranks) {
  return {AllButOwn(words, ranks), Log2Up(ranks)};
}
// `words`: the number on each rank at the start.
inline CommunicationCost ReduceScatter(double words, int64_t ranks) {
  return AllGather(words, ranks);
}
inline CommunicationCost AllReduce(double words, int64_t ranks) {
  return {AllButOwn(2 * words, ranks), 2 * Log2Up(ranks)};
}

}  // namespace cadre
