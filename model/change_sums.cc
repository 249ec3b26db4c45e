#include "model/change_sums.h"

#include <cmath>
#include <limits>

namespace cadre {
namespace {

v1::ChangeSums Filled(int groups, double value) {
  v1::ChangeSums sums;
  for (auto* field :
       {sums.mutable_squared(), sums.mutable_sampled_squared(), sums.mutable_product()}) {
    field->Resize(groups, value);
  }
  sums.add_mean_squared(value);
  return sums;
}

bool AddTo(const google::protobuf::RepeatedField<double>& more,
           google::protobuf::RepeatedField<double>* sums) {
  if (more.size() != sums->size()) return false;
  for (int i = 0; i < sums->size(); ++i) {
    const bool infinite = std::isinf(sums->Get(i)) || std::isinf(more.Get(i));
    sums->Set(i, infinite ? std::numeric_limits<double>::infinity() : sums->Get(i) + more.Get(i));
  }
  return true;
}

}  // namespace

v1::ChangeSums NoChanges(int groups) { return Filled(groups, 0); }

v1::ChangeSums UnknownChanges(int groups) {
  return Filled(groups, std::numeric_limits<double>::quiet_NaN());
}

bool AddChanges(const v1::ChangeSums& more, v1::ChangeSums& sums) {
  return AddTo(more.squared(), sums.mutable_squared()) &&
         AddTo(more.sampled_squared(), sums.mutable_sampled_squared()) &&
         AddTo(more.product(), sums.mutable_product()) &&
         AddTo(more.mean_squared(), sums.mutable_mean_squared());
}

}  // namespace cadre
