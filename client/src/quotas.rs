//! Quotas of users, client ids and addresses (KIP-546).

use std::time::Duration;

use kafka_protocol::messages::alter_client_quotas_request::{EntityData, EntryData, OpData};
use kafka_protocol::messages::{AlterClientQuotasRequest, DescribeClientQuotasRequest};
use kafka_protocol::protocol::StrBytes;

use crate::ClientError;
use crate::cluster::Client;
use crate::history::{QuotaEntityNames, QuotasAtMoment};
use crate::topics::{check_error_code, str_bytes};

const SERVER_WAIT: Duration = Duration::from_secs(30);

impl Client {
    /// All quotas, by entity.
    ///
    /// # Errors
    /// The server cannot be asked, or refuses.
    pub async fn quotas(&mut self) -> Result<Vec<QuotasAtMoment>, ClientError> {
        let answer = self.call_any(&DescribeClientQuotasRequest::default()).await?;
        let message = answer.error_message.as_deref();
        check_error_code(|| "list quotas".to_owned(), answer.error_code, message)?;
        let described = answer.entries.unwrap_or_default().into_iter().map(|described| {
            let name = |name: &StrBytes| name.to_string();
            let entity = described.entity.iter();
            let quotas = described.values.iter();
            QuotasAtMoment {
                entity: entity
                    .map(|component| {
                        (name(&component.entity_type), component.entity_name.as_ref().map(name))
                    })
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
        let components = entity.iter().map(|(kind, name)| {
            let name = name.as_deref().map(str_bytes);
            EntityData::default().with_entity_type(str_bytes(kind)).with_entity_name(name)
        });
        let changes = quotas.iter().map(|(name, value)| {
            let change = OpData::default().with_key(str_bytes(name)).with_remove(value.is_none());
            change.with_value(value.unwrap_or_default())
        });
        let (components, changes) = (components.collect(), changes.collect());
        let entry = EntryData::default().with_entity(components).with_ops(changes);
        let request = AlterClientQuotasRequest::default().with_entries(vec![entry]);
        let controller = self.controller().await?;
        let answer = self.call(&controller, &request, SERVER_WAIT).await?;
        for result in &answer.entries {
            let message = result.error_message.as_deref();
            check_error_code(|| "set quotas".to_owned(), result.error_code, message)?;
        }
        Ok(())
    }
}
