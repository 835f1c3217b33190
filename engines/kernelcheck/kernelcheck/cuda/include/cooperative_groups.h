// Cooperative groups: the threads of a block, of a part of a warp, and those that are together by chance.
// What needs a launch of its own (a barrier of the whole grid, of a cluster) cannot run here.
// On a real GPU the same text is compiled by NVRTC, which finds no such header where pip's torch is all there is.
#pragma once
#ifdef __CUDACC_RTC__
#define KC_HERE __device__ __forceinline__
#define KC_INSIDE KC_HERE
#define kc_sync(place, line) __syncthreads()
#define kc_sync_warp(mask, line) __syncwarp(mask)
#define kc_active(line) __activemask()
#define kc_ballot(mask, p, line) __ballot_sync(mask, p)
#define kc_match(mask, v, line) __match_any_sync(mask, v)
#define kc_shuffle(kind, line, mask, v, lane) __shfl_sync(mask, v, lane)
KC_HERE unsigned kc_lane() { unsigned lane; asm("mov.u32 %0, %%laneid;" : "=r"(lane)); return lane; }
#else
#define KC_INSIDE inline __attribute__((always_inline))
#endif

namespace cooperative_groups {
#define KC_LINE int line = __builtin_LINE()  // of the reader's call

// A block, or `n` lanes of a warp that `mask` names; a thread's rank is its place among them.
class thread_group {
 protected:
  unsigned mask, n;  // n is 0 for a block
  KC_INSIDE static unsigned kc_threads() { return blockDim.x * blockDim.y * blockDim.z; }
  KC_INSIDE static unsigned kc_index() { return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z); }

 public:
  KC_INSIDE thread_group(unsigned lanes, unsigned count) : mask(lanes), n(count) {}
  KC_INSIDE unsigned long long size() const { return n ? n : kc_threads(); }
  KC_INSIDE unsigned long long num_threads() const { return size(); }
  KC_INSIDE unsigned long long thread_rank() const { return n ? __popc(mask & ((1u << kc_lane()) - 1)) : kc_index(); }
  KC_INSIDE void sync(KC_LINE) const { n ? kc_sync_warp(mask, line) : kc_sync(1 << 24 | line, line); }
};

struct thread_block : thread_group {
  KC_INSIDE thread_block() : thread_group(0, 0) {}
  KC_INSIDE static unsigned size() { return kc_threads(); }
  KC_INSIDE static unsigned num_threads() { return kc_threads(); }
  KC_INSIDE static unsigned thread_rank() { return kc_index(); }
  KC_INSIDE static void sync(KC_LINE) { kc_sync(1 << 24 | line, line); }
  KC_INSIDE static dim3 group_index() { return blockIdx; }
  KC_INSIDE static dim3 thread_index() { return threadIdx; }
  KC_INSIDE static dim3 group_dim() { return blockDim; }
  KC_INSIDE static dim3 dim_threads() { return blockDim; }
};
KC_HERE thread_block this_thread_block() { return thread_block(); }

// What lanes of a warp give one another.
struct kc_part_of_warp : thread_group {
  using thread_group::thread_group;
  KC_INSIDE unsigned size() const { return n; }
  KC_INSIDE unsigned num_threads() const { return n; }
  KC_INSIDE unsigned thread_rank() const { return __popc(mask & ((1u << kc_lane()) - 1)); }
  KC_INSIDE unsigned kc_lane_of(unsigned rank) const { unsigned m = mask; while (rank--) m &= m - 1; return __ffs(int(m)) - 1; }
  KC_INSIDE unsigned kc_ranks(unsigned lanes) const {
    unsigned r = 0;
    for (unsigned i = 0; i < n; i++) r |= (lanes >> kc_lane_of(i) & 1) << i;
    return r;
  }
  template <class T> KC_INSIDE T kc_give(T v, unsigned rank, int line) const {
    return kc_shuffle('i', line, mask, v, int(kc_lane_of(rank)));
  }
  template <class T> KC_INSIDE T shfl(T v, unsigned rank, KC_LINE) const { return kc_give(v, rank % n, line); }
  template <class T> KC_INSIDE T shfl_up(T v, unsigned by, KC_LINE) const {
    unsigned rank = thread_rank();
    return kc_give(v, by > rank ? rank : rank - by, line);
  }
  template <class T> KC_INSIDE T shfl_down(T v, unsigned by, KC_LINE) const {
    unsigned rank = thread_rank();
    return kc_give(v, rank + by < n ? rank + by : rank, line);
  }
  KC_INSIDE unsigned ballot(int p, KC_LINE) const { return kc_ranks(kc_ballot(mask, p, line)); }
  KC_INSIDE int any(int p, KC_LINE) const { return kc_ballot(mask, p, line) != 0; }
  KC_INSIDE int all(int p, KC_LINE) const { return kc_ballot(mask, !p, line) == 0; }
  template <class T> KC_INSIDE unsigned match_any(T v, KC_LINE) const { return kc_ranks(kc_match(mask, v, line)); }
};

template <unsigned N, class Parent = void> struct thread_block_tile;
template <class Parent> struct kc_parent : thread_block {};  // of which a tile is a part
template <unsigned N, class P> struct kc_parent<thread_block_tile<N, P>> : thread_block_tile<N, P> {};
template <unsigned N, class Parent> struct thread_block_tile : kc_part_of_warp {
  static_assert(N && N <= 32 && !(N & (N - 1)), "a tile has 1, 2, 4, 8, 16 or 32 threads");
  static constexpr unsigned kc_all = N == 32 ? 0xffffffffu : (1u << N % 32) - 1;
  KC_INSIDE thread_block_tile() : kc_part_of_warp(kc_all << (kc_lane() & ~(N - 1)), N) {}
  template <class Other> KC_INSIDE thread_block_tile(const thread_block_tile<N, Other>&) : thread_block_tile() {}
  KC_INSIDE static constexpr unsigned size() { return N; }
  KC_INSIDE static constexpr unsigned num_threads() { return N; }
  KC_INSIDE static unsigned thread_rank() { return kc_lane() & (N - 1); }
  KC_INSIDE static unsigned meta_group_size() { return (kc_parent<Parent>::size() + N - 1) / N; }
  KC_INSIDE static unsigned meta_group_rank() { return kc_parent<Parent>::thread_rank() / N; }
  template <class T> KC_INSIDE T shfl_xor(T v, unsigned by, KC_LINE) const {
    return kc_give(v, (thread_rank() ^ by) & (N - 1), line);
  }
};
template <unsigned N> KC_HERE thread_block_tile<N, thread_block> tiled_partition(const thread_block&) { return {}; }
template <unsigned N, unsigned M, class P>
KC_HERE thread_block_tile<N, thread_block_tile<M, P>> tiled_partition(const thread_block_tile<M, P>&) {
  static_assert(N <= M, "a tile is no larger than the tile that it is a part of");
  return {};
}
KC_HERE thread_group tiled_partition(const thread_group&, unsigned n) {
  unsigned all = n >= 32 ? 0xffffffffu : (1u << n) - 1;
  return thread_group(all << (kc_lane() & ~(n - 1)), n);
}

struct coalesced_group : kc_part_of_warp {
  KC_INSIDE coalesced_group(unsigned lanes) : kc_part_of_warp(lanes, unsigned(__popc(lanes))) {}
};
KC_INSIDE coalesced_group coalesced_threads(KC_LINE) { return coalesced_group(kc_active(line)); }

struct grid_group {
  KC_INSIDE static unsigned long long num_blocks() { return (unsigned long long)gridDim.x * gridDim.y * gridDim.z; }
  KC_INSIDE static unsigned long long size() { return num_blocks() * thread_block::size(); }
  KC_INSIDE static unsigned long long num_threads() { return size(); }
  KC_INSIDE static unsigned long long block_rank() {
    return blockIdx.x + gridDim.x * (blockIdx.y + (unsigned long long)gridDim.y * blockIdx.z);
  }
  KC_INSIDE static unsigned long long thread_rank() { return block_rank() * thread_block::size() + thread_block::thread_rank(); }
  KC_INSIDE static dim3 block_index() { return blockIdx; }
  KC_INSIDE static dim3 dim_blocks() { return gridDim; }
  KC_INSIDE static dim3 group_dim() { return gridDim; }
  KC_INSIDE static bool is_valid() { return false; }
  template <class T = int> KC_INSIDE static void sync() {
    static_assert(sizeof(T) == 0, "a barrier of the whole grid needs a cooperative launch, which is not had here");
  }
};
KC_HERE grid_group this_grid() { return {}; }
template <class Group> KC_INSIDE void sync(const Group& group, KC_LINE) { group.sync(line); }
}  // namespace cooperative_groups
