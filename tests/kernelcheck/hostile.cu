// Hostile kernels, run by two blocks of 64 threads: a phrase of what is said of each, and arguments other than 64 zeros.

// == endless
__global__ void k(float* x){ for(;;); }

// == stack
__device__ int f(int n){ volatile int a[10]; a[0]=n; return f(n+1)+a[0]; } __global__ void k(float* x){ x[0]=f(0); }

// == stack
__global__ void k(float* x){ volatile float a[1<<20]; for(int i=0;i<(1<<20);i+=7) a[i]=i; x[threadIdx.x]=a[5]; }

// == wild pointer
__global__ void k(float* x){ *(float*)0 = 1; }

// == wild pointer | None
__global__ void k(float* x){ x[threadIdx.x] = 1; }

// == exit
__global__ void k(float* x){ exit(0); }

// == of the host's library
#include <unistd.h>
__global__ void k(float* x){ _exit(0); }

// == abort
__global__ void k(float* x){ abort(); }

// == endless
__global__ void k(float* x){ while(1) printf("hello %d\n", threadIdx.x); }

// == assert
#include <assert.h>
__global__ void k(float* x){ assert(threadIdx.x < 5); }

// == trap
__global__ void k(float* x){ __trap(); }

// == exception
__global__ void k(float* x){ throw 1; }

// == of the host's library
#include <signal.h>
__global__ void k(float* x){ kill(getpid(), 9); }

// == allocates itself
__global__ void k(float* x){ while(1) memset(malloc(1<<20),1,1<<20); }

// == division by zero
__global__ void k(float* x){ x[threadIdx.x] = 5 / (int)x[0]; }

// == element -5 of `x`
__global__ void k(float* x){ int i = threadIdx.x; x[i - 5] = 1; }

// == (-5 as an unsigned number)
__global__ void k(float* x){ unsigned i = threadIdx.x; if (i < 64 - 0) x[i - 5] = 1; }

// == wild pointer
__global__ void k(float* x){ x[(long long)threadIdx.x << 40] = 1; }

// == wild pointer
__global__ void k(float* x){ __shared__ float* p; float mine = 3; if (threadIdx.x==0) p = &mine; __syncthreads(); x[threadIdx.x] = *p; }

// == wild pointer
__global__ void k(float* x){ char a[16]; volatile char* p = a; for (int i = 0; i < 1000000; i++) p[i] = 0; x[0]=a[3]; }

// == endless | torch.zeros(1, dtype=torch.int32)
__global__ void k(int* x){ if (blockIdx.x == 0) while (atomicAdd(x, 0) == 0); else atomicAdd(x, 1); }

// == divergent barrier
__global__ void k(float* x){ if (threadIdx.x < 32) __syncthreads(); else __syncthreads(); }

// == divergent barrier
__global__ void k(float* x){ float v=1; if (threadIdx.x % 32 < 16) v = __shfl_down_sync(0xffffffff, v, 8); __syncthreads(); x[threadIdx.x] = v; }

// == divergent barrier
__global__ void k(float* x){ float v=1; v = __shfl_down_sync(0x1, v, 8); x[threadIdx.x] = v; }

// == misaligned
__global__ void k(float* x){ float4 v = *(float4*)(x + 1); x[threadIdx.x] = v.x; }

// == element 64 of `x`
__global__ void k(float4* x){ x[threadIdx.x] = make_float4(1,2,3,4); }

// == race
__global__ void k(float* x){ __shared__ volatile float s[64]; s[threadIdx.x]=threadIdx.x; if (threadIdx.x < 32) { s[threadIdx.x]+=s[threadIdx.x+32]; } x[threadIdx.x]=s[threadIdx.x]; }

// == element 64 of `x`
__global__ void k(float* x){ if(threadIdx.x==0) memcpy(x, x + 60, 32); }

// == beyond the shared_mem
extern __shared__ float s[];
__global__ void k(float* x){ s[threadIdx.x]=1; __syncthreads(); x[threadIdx.x]=s[threadIdx.x]; }

// == blocks run in no order
__global__ void k(float* x){ float v = x[(threadIdx.x+1) % 64]; __syncthreads(); x[threadIdx.x] = v; }

// == misaligned | torch.zeros(64, dtype=torch.int8)
__global__ void k(char* x){ *(int*)(x+1) = 4; }

// == line 1
template<int N> struct A { static const int v = A<N-1>::v + A<N-2>::v; }; __global__ void k(float* x){ x[0] = A<100000>::v; }

// == line 3
__global__ void k(float* x){
 int i = threadIdx.x
 x[i] = 1;
}

// == the text ends inside
__global__ void k(float* x){
 if (x) {

// == undefined reference
__device__ float f(float);
__global__ void k(float* x){
 x[0] = f(1); }

// == a kernel returns void
__global__ int k(float* x){ return 1; }

// == there is no kernel
void k(float* x){ }

// == identifier "i" is undefined
__global__ void k(float* x){ x[i] = 1; }

// == is undefined; did you mean threadIdx?
__global__ void k(float* x){ x[threadidx.x] = 1; }

// == identifier "string" is undefined
__global__ void k(float* x){ string s = 1; }

// == identifier "half" is undefined
__global__ void k(float* x){
 for (half = 2; half > 0; half /= 2) x[half] = 1; }

// == line 2: int main() {
__global__ void k(float* x){ x[0] = 1; }
int main() {
 k<<<1, 1>>>(0);
}

// == needs a cooperative launch
#include <cooperative_groups.h>
namespace cg = cooperative_groups;
__global__ void k(float* x){ auto b = cg::this_grid(); b.sync(); }

// == line 1
__global__ void k(float* x){ threadIdx.x = 3; }

// == atomicMax does not exist for this type
__global__ void k(float* x){ atomicMax(x, 1.0f); }

// == a structure
struct P { float* a; int n; }; __global__ void k(P p){ p.a[0] = 1; }

// == `int n` cannot hold | F(64), 2147483648
__global__ void k(float* x, int n){ x[0] = n; }

// == needs a whole number | F(64), 1.0
__global__ void k(float* x, int n){ x[0] = n; }
