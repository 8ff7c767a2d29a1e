//! Quotas of users, client ids and addresses (KIP-546).

use std::time::Duration;

use kafka_protocol::ResponseError;
use kafka_protocol::messages::alter_client_quotas_request::{EntityData, EntryData, OpData};
use kafka_protocol::messages::{AlterClientQuotasRequest, DescribeClientQuotasRequest};
use kafka_protocol::protocol::StrBytes;

use crate::ClientError;
use crate::cluster::Client;
use crate::history::{QuotaEntityNames, QuotasAtMoment};

const SERVER_WAIT: Duration = Duration::from_secs(30);

fn text(text: &str) -> StrBytes {
    StrBytes::from_string(text.to_owned())
}

impl Client {
    /// All quotas, by whom they are of.
    ///
    /// # Errors
    /// The server cannot be asked, or refuses.
    pub async fn quotas(&mut self) -> Result<Vec<QuotasAtMoment>, ClientError> {
        let answer = self.call_any(&DescribeClientQuotasRequest::default()).await?;
        if let Some(error) = ResponseError::try_from_code(answer.error_code) {
            let message = answer.error_message.as_deref();
            return Err(ClientError::kafka("list quotas", error, message));
        }
        let described = answer.entries.unwrap_or_default().into_iter().map(|described| {
            let name = |name: &StrBytes| name.to_string();
            let entity = described.entity.iter();
            let quotas = described.values.iter();
            QuotasAtMoment {
                entity: entity
                    .map(|of| (name(&of.entity_type), of.entity_name.as_ref().map(name)))
                    .collect(),
                quotas: quotas.map(|quota| (name(&quota.key), quota.value)).collect(),
            }
        });
        let mut quotas: Vec<QuotasAtMoment> = described.collect();
        quotas.sort_by(|a, b| a.entity.cmp(&b.entity));
        Ok(quotas)
    }

    /// Sets quotas of `entity` by their names, or removes those without a value. Others stay.
    ///
    /// # Errors
    /// The server cannot be asked, or refuses: it knows no such quota, or the value makes no sense.
    pub async fn set_quotas(
        &mut self,
        entity: &QuotaEntityNames,
        quotas: &[(String, Option<f64>)],
    ) -> Result<(), ClientError> {
        let parts = entity.iter().map(|(kind, name)| {
            let name = name.as_deref().map(text);
            EntityData::default().with_entity_type(text(kind)).with_entity_name(name)
        });
        let changes = quotas.iter().map(|(name, value)| {
            let change = OpData::default().with_key(text(name)).with_remove(value.is_none());
            change.with_value(value.unwrap_or_default())
        });
        let (parts, changes) = (parts.collect(), changes.collect());
        let entry = EntryData::default().with_entity(parts).with_ops(changes);
        let request = AlterClientQuotasRequest::default().with_entries(vec![entry]);
        let controller = self.controller().await?;
        let answer = self.call(&controller, &request, SERVER_WAIT).await?;
        for result in &answer.entries {
            if let Some(error) = ResponseError::try_from_code(result.error_code) {
                let message = result.error_message.as_deref();
                return Err(ClientError::kafka("set quotas", error, message));
            }
        }
        Ok(())
    }
}
