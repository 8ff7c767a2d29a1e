/* Prints the layout of libibverbs' structures by its own headers. A test of the crate compares it
 * with what the crate believes: rdma/src/verbs/ffi/loaded.rs, `layouts`. */
#include <infiniband/verbs.h>
#include <stddef.h>
#include <stdio.h>

#define FIELD(type, field) printf(#type " " #field " %zu\n", offsetof(struct type, field))
#define SIZE(type) printf(#type " %zu\n", sizeof(struct type))

int main(void) {
    FIELD(ibv_context, ops); FIELD(ibv_context, async_fd);
    FIELD(ibv_context_ops, poll_cq); FIELD(ibv_context_ops, req_notify_cq); FIELD(ibv_context_ops, post_send);
    FIELD(ibv_cq, context);
    FIELD(ibv_qp, context); FIELD(ibv_qp, qp_num);
    FIELD(ibv_comp_channel, fd);
    FIELD(ibv_mr, lkey); FIELD(ibv_mr, rkey);
    FIELD(ibv_device_attr, max_qp_wr); FIELD(ibv_device_attr, max_sge); FIELD(ibv_device_attr, max_cqe);
    FIELD(ibv_device_attr, max_qp_rd_atom); FIELD(ibv_device_attr, max_qp_init_rd_atom);
    FIELD(ibv_device_attr, phys_port_cnt);
    FIELD(ibv_port_attr, state); FIELD(ibv_port_attr, active_mtu); FIELD(ibv_port_attr, max_msg_sz);
    FIELD(ibv_port_attr, lid); FIELD(ibv_port_attr, link_layer); FIELD(ibv_port_attr, flags);
    FIELD(ibv_qp_init_attr, send_cq); FIELD(ibv_qp_init_attr, recv_cq); FIELD(ibv_qp_init_attr, srq);
    FIELD(ibv_qp_init_attr, cap); FIELD(ibv_qp_init_attr, qp_type); FIELD(ibv_qp_init_attr, sq_sig_all);
    FIELD(ibv_qp_attr, path_mtu); FIELD(ibv_qp_attr, rq_psn); FIELD(ibv_qp_attr, sq_psn);
    FIELD(ibv_qp_attr, dest_qp_num); FIELD(ibv_qp_attr, qp_access_flags); FIELD(ibv_qp_attr, cap);
    FIELD(ibv_qp_attr, ah_attr); FIELD(ibv_qp_attr, pkey_index); FIELD(ibv_qp_attr, max_rd_atomic);
    FIELD(ibv_qp_attr, max_dest_rd_atomic); FIELD(ibv_qp_attr, min_rnr_timer); FIELD(ibv_qp_attr, port_num);
    FIELD(ibv_qp_attr, timeout); FIELD(ibv_qp_attr, retry_cnt); FIELD(ibv_qp_attr, rnr_retry);
    FIELD(ibv_qp_attr, rate_limit);
    FIELD(ibv_ah_attr, dlid); FIELD(ibv_ah_attr, is_global); FIELD(ibv_ah_attr, port_num);
    FIELD(ibv_sge, addr); FIELD(ibv_sge, length); FIELD(ibv_sge, lkey);
    FIELD(ibv_send_wr, next); FIELD(ibv_send_wr, sg_list); FIELD(ibv_send_wr, num_sge);
    FIELD(ibv_send_wr, opcode); FIELD(ibv_send_wr, send_flags); FIELD(ibv_send_wr, imm_data);
    FIELD(ibv_wc, wr_id); FIELD(ibv_wc, status); FIELD(ibv_wc, byte_len);
    FIELD(ibv_async_event, event_type);
    printf("remote_addr %zu\n", offsetof(struct ibv_send_wr, wr.rdma.remote_addr));
    printf("rkey %zu\n", offsetof(struct ibv_send_wr, wr.rdma.rkey));
    printf("sgid_index %zu\n", offsetof(struct ibv_ah_attr, grh.sgid_index));
    SIZE(ibv_context_ops); SIZE(ibv_mr);
    printf("ibv_gid %zu\n", sizeof(union ibv_gid));
    SIZE(ibv_device_attr); SIZE(ibv_port_attr); SIZE(ibv_qp_cap); SIZE(ibv_qp_init_attr);
    SIZE(ibv_ah_attr); SIZE(ibv_qp_attr); SIZE(ibv_sge); SIZE(ibv_send_wr); SIZE(ibv_wc);
    SIZE(ibv_async_event);
    return 0;
}
